import sys

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import lineage_stash as ray
from lineage_stash.on_spark import spark_stage
from raydp_jobs.job import Job, Summary, make_parser, run_job
from raydp_jobs.tables import Column, bad_of, check_columns, table_of

PAYMENT = (Column("customer"), Column("cents", "int"))


@spark_stage
def payments(spark: SparkSession, files: tuple[str, ...], partitions: int) -> DataFrame:
    good = table_of(spark, files, PAYMENT).where("reason is null").select("customer", "cents")
    return good.repartition(partitions, "customer")


@spark_stage
def bad_rows(spark: SparkSession, files: tuple[str, ...]) -> DataFrame:
    return bad_of(table_of(spark, files, PAYMENT))


class Totals:
    def __init__(self):
        self.cents = {}

    def add(self, table):
        for row in table.to_pylist():
            self.cents[row["customer"]] = self.cents.get(row["customer"], 0) + row["cents"]
        return table.num_rows

    def table(self):
        return pa.table({"customer": sorted(self.cents), "cents": [self.cents[each] for each in sorted(self.cents)]})


def add_up(job: Job) -> Summary:
    bad = bad_rows(job.session, job.inputs.files)
    refs = payments(job.session, job.inputs.files, job.arguments.partitions)
    actors = job.actors = [ray.remote(num_cpus=0)(Totals).remote() for _ in range(2)]
    adding = [actors[number % 2].add.remote(ref) for number, ref in enumerate(refs)]
    return {
        "payments": sum(job.follow(adding, "adding")),
        "customers": job.write_parts("totals", [actor.table.remote() for actor in actors]),
        "bad_rows": job.write_parts("bad", bad),
    }


if __name__ == "__main__":
    parser = make_parser("payments", "Adds up payments.")
    sys.exit(run_job(parser, add_up, check=lambda inputs: check_columns(inputs.files, PAYMENT)))
