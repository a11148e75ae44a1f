"""`python -m benchmarks`: every benchmark that needs no cluster, each with its bar."""

from benchmarks.core_path import main

if __name__ == "__main__":
    main()
