"""`python -m lineage_stash.cli` is `stash`."""

from lineage_stash.cli import main

if __name__ == "__main__":
    main()
