"""A script with a run id that counts the words of a stream, and is killed after a batch if it is told to be."""

import os
import signal
import sys

from pyspark.sql import DataFrame

import lineage_stash as ray
from lineage_stash.on_spark import foreach_batch, spark_session
from tests.spark.test_streaming import Words, deliver


def main(folder: str, dies_after: int) -> None:
    with ray.init(run_id="stream", log_to_driver=False):
        actors = [ray.remote(num_cpus=0)(Words).remote() for _ in range(2)]
        feed = foreach_batch(deliver, actors, name="stream")

        def feed_and_die(frame: DataFrame, batch_id: int) -> None:
            feed(frame, batch_id)
            if batch_id == dies_after:
                os.kill(os.getpid(), signal.SIGKILL)

        with spark_session("stream", executor_cores=1, executor_memory="1g", progress=False, timeout_s=300) as session:
            read = session.readStream.option("maxFilesPerTrigger", 1).text(f"{folder}/incoming")
            write = read.writeStream.foreachBatch(feed_and_die).trigger(availableNow=True)
            write.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()
        for counts, batches in ray.get([actor.all.remote() for actor in actors]):
            print("counted", sum(counts.values()), batches)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
