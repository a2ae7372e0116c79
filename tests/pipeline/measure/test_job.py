"""Measures of a run whose numbers are worked out by hand, and of a simulated one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.kernel.message import Message
from amcast.lab.sweep_cell import normalise_plan, run_cell
from amcast.pipeline.measure.comparison import COMPARISON, SUMMARY, confidence_interval
from amcast.pipeline.measure.job import MEASURES, MeasureResult, measure, measure_cells, prepare_folder
from amcast.trace.meta import Meta
from amcast.trace.run_folder import FolderRecorder
from tests import ROOT

DOCS = ROOT / "docs"
PLAN = {
    "protocol": "primcast",
    "seed": 5,
    "topology": {"environment": "wan-3", "groups": 2, "replicas": 3, "clients": 3},
    "workload": {"messages": 60, "destinations": [1, 2], "outstanding": 2},
}


def write_known_run(folder: Path) -> None:
    """Ten messages, one a microsecond, from client 9 in the east.

    Group 0 is process 0 in the east and delivers even messages after 100 ns. Group 1 is processes 1 and 2 in the west:
    process 1 delivers all after 200 ns, of which it waited 80; process 2 after 150, the last two after 300.
    """
    with FolderRecorder(folder, Meta(run="hand"), latest=False) as recorder:
        for process, group, region in ((0, 0, "east"), (1, 1, "west"), (2, 1, "west"), (9, None, "east")):
            recorder.record_process(process, group, region)
        recorder.record_process(1, 1, "west")  # it was stopped cleanly and restarted
        position = dict.fromkeys((0, 1, 2), 0)
        for id in range(10):
            sent = 1000 * id
            message = Message(id, 9, (0, 1) if id % 2 == 0 else (1,), bytes(64))
            recorder.record_multicast(message, sent)
            late = 150 if id < 8 else 300
            for process, group, after in ((0, 0, 100), (1, 1, 200), (2, 1, late)):
                if group in message.destinations:
                    recorder.record_packet(id, "Request", 9, process, 80, sent, sent + 50)
                    committed = sent + 120 if process == 1 else None
                    recorder.record_delivery(
                        process, group, position[process], message, sent + after, committed_ns=committed
                    )
                    position[process] += 1
        recorder.record_packet(3, "Request", 9, 0, 90, 3000, 3050)
        recorder.record_packet(1, "Gossip", 0, 1, 10, 1100, None)
        recorder.record_packet((0, 2), "Ack", 0, 1, 12, 2200, 2250)
        recorder.record_packet(None, "Heartbeat", 1, 2, 4, 5000, 5010)
        recorder.record_note(1, 8100, "slow", 8)
        recorder.record_note(1, 3200, "convoy", 3, 80.0)
        recorder.record_note(2, 4500, "fault-crash")
        recorder.close()


class Tables:
    """The tables of a folder of measures."""

    def __init__(self, out: Path, result: MeasureResult) -> None:
        self.out, self.result = out, result

    def rows(self, table: str, **where: Any) -> list[dict[str, Any]]:
        found = pq.read_table(self.out / f"{table}.parquet").to_pylist()
        return [row for row in found if all(row[name] == value for name, value in where.items())]

    def row(self, table: str, **where: Any) -> dict[str, Any]:
        (found,) = self.rows(table, **where)
        return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("measured")
    write_known_run(folder / "hand")
    cell = run_cell(normalise_plan(PLAN, "plan"), str(folder / "simulated"))
    return folder, cell


@pytest.fixture(scope="module")
def tables(spark: SparkSession, runs: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Tables:
    out = tmp_path_factory.mktemp("tables") / "both"
    return Tables(out, measure(spark, str(runs[0]), out))


@pytest.fixture(scope="module")
def sketch_tables(
    spark: SparkSession, runs: tuple[Path, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> Tables:
    """The hand-made run again: all of it, ranked backwards, by sketches."""
    out = tmp_path_factory.mktemp("tables") / "sketch_tables"
    result = measure(spark, str(runs[0] / "hand"), out, edge=0.0, order=[1, 0], exact_rows=0)
    return Tables(out, result)


def test_every_table_exists_and_is_documented(tables: Tables) -> None:
    legend = (DOCS / "RESULTS.md").read_text()
    for name in (*MEASURES, "summary", "comparison"):
        parquet = pq.read_table(tables.out / f"{name}.parquet")
        assert len(parquet) == tables.result.tables[name]
        assert pacsv.read_csv(tables.out / f"{name}.csv").num_rows == len(parquet)
        assert f"| `{name}` |" in legend
    assert tables.result.missing == []
    assert tables.result.method == "exact"
    assert not [file for file in tables.out.iterdir() if file.name.startswith(".")]


def test_other_writers_and_repeated_rows_give_the_same_tables(
    spark: SparkSession, runs: tuple[Path, dict[str, Any]], tables: Tables, tmp_path: Path
) -> None:
    """64-bit and unsigned integers; multicasts that were retried and deliveries that were recorded twice, all later."""
    folder = tmp_path / "hand"
    shutil.copytree(runs[0] / "hand", folder)
    for file in sorted(folder.rglob("*.parquet")):
        data = pq.read_table(file)
        for at, field in enumerate(data.schema):
            if pa.types.is_int32(field.type):
                data = data.set_column(at, field.name, data.column(at).cast(pa.int64()))
        if file.parent.name in ("multicasts", "deliveries"):
            at = data.schema.get_field_index("at_ns")
            again = data.slice(3, 4).set_column(at, "at_ns", pc.add(data.slice(3, 4).column("at_ns"), 7))
            data = pa.concat_tables([data, again], promote_options="default")
            data = data.set_column(at, "at_ns", data.column("at_ns").cast(pa.uint64()))
        pq.write_table(data, file)
    found = Tables(tmp_path / "tables", measure(spark, str(folder), tmp_path / "tables"))
    for name in ("spans", "latency"):
        assert found.rows(name) == tables.rows(name, run="hand")


def test_wrong_rows_are_refused(spark: SparkSession, runs: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder = tmp_path / "hand"
    shutil.copytree(runs[0] / "hand", folder)
    (file,) = (folder / "deliveries").glob("*.parquet")
    data = pq.read_table(file)
    at = data.schema.get_field_index("group")
    pq.write_table(data.set_column(at, "group", pa.array([1] * len(data), pa.int32())), file)
    with pytest.raises(UsageError, match="deliveries: group of process 0 is 1, but 0 in processes"):
        measure(spark, str(folder), tmp_path / "tables")
    nulls = pa.array([None, *data.column("message").to_pylist()[1:]], pa.int64())
    pq.write_table(data.set_column(data.schema.get_field_index("message"), "message", nulls), file)
    with pytest.raises(UsageError, match="column message is null in row 0"):
        measure(spark, str(folder), tmp_path / "tables")


def test_latency_of_steady_part(tables: Tables) -> None:
    """Without the last message: five responses after 100 ns, eight after 150, one after 200."""
    line = tables.row("latency", run="hand", by="all")
    assert line["count"] == 14
    assert line["latency_ns_mean"] == pytest.approx(1900 / 14)
    assert [line[f"latency_ns_{name}"] for name in ("min", "p50", "p90", "p95", "p99", "max")] == [
        100, 150, 150, 200, 200, 200,
    ]  # fmt: skip
    assert line["latency_ns_mean_low"] < line["latency_ns_mean"] < line["latency_ns_mean_high"]
    assert line["latency_ns_p50_low"] <= 150 <= line["latency_ns_p50_high"]


def test_latency_by_rank_and_by_response(tables: Tables) -> None:
    first, second = tables.rows("latency", run="hand", by="rank")
    assert (first["place"], first["count"], first["latency_ns_mean"]) == (1, 9, pytest.approx(1100 / 9))
    assert (second["place"], second["count"], second["latency_ns_mean"]) == (2, 5, pytest.approx(160))
    assert [row["count"] for row in tables.rows("latency", run="hand", by="response")] == [9, 5]
    assert [(row["place"], row["count"]) for row in tables.rows("latency", run="hand", by="destinations")] == [
        (1, 4),
        (2, 10),
    ]
    assert [(row["place"], row["latency_ns_p50"]) for row in tables.rows("latency", run="hand", by="group")] == [
        (0, 100),
        (1, 150),
    ]


def test_cdf_is_a_distribution(tables: Tables) -> None:
    for run in ("hand", "simulated"):
        points = [(row["share"], row["latency_ns"]) for row in tables.rows("cdf", run=run, by="all")]
        assert len(points) == 203
        assert points == sorted(points)
        assert points[0][1] == tables.row("latency", run=run, by="all")["latency_ns_min"]
        assert dict(points)[0.95] == tables.row("latency", run=run, by="all")["latency_ns_p95"]
        assert points[-1][1] == tables.row("latency", run=run, by="all")["latency_ns_max"]


def test_throughput(tables: Tables) -> None:
    line = tables.row("spans", run="hand")
    assert (line["multicasts"], line["deliveries"], line["completed"]) == (10, 25, 10)
    assert line["throughput_per_s"] == pytest.approx(8e9 / (8200 - 150))
    slices = tables.rows("throughput", run="hand")
    width = slices[0]["to_ns"] - slices[0]["from_ns"]
    assert sum(row["completions_per_s"] for row in slices) * width / 1e9 == pytest.approx(10)
    assert sum(row["deliveries_per_s"] for row in slices) * width / 1e9 == pytest.approx(25)


def test_packets(tables: Tables) -> None:
    zero, client = tables.row("packets", run="hand", process=0), tables.row("packets", run="hand", process=9)
    assert (zero["sent"], zero["received"], zero["lost"], zero["bytes_sent"]) == (2, 6, 1, 22)
    assert (client["sent"], client["group"], client["sent_per_multicast"]) == (26, None, 2.6)
    bodies = {row["body"]: row["packets"] for row in tables.rows("bodies", run="hand")}
    assert bodies == {"Request": 26, "Gossip": 1, "Ack": 1, "Heartbeat": 1}


def test_audit_counts_work_for_others(tables: Tables) -> None:
    """Process 0 received message 3 and gossiped about message 1, which are none of its business."""
    line = tables.row("audit", run="hand", process=0)
    assert (line["worked"], line["worked_for_others"], line["messages_of_others"]) == (5 + 1 + 1 + 2, 2, 2)
    assert tables.row("audit", run="hand", process=1)["worked_for_others"] == 0
    assert tables.row("work", run="hand", group=0, for_group=1)["worked_as_stranger"] == 2
    assert {row["group"]: row["overhead"] for row in tables.rows("overhead", run="hand")} == {
        0: pytest.approx(1 / 6), 1: 0,
    }  # fmt: skip


def test_convoys_paths_and_fairness(tables: Tables) -> None:
    line = tables.row("convoy", run="hand", group=1)
    assert (line["deliveries"], line["waited"], line["wait_ns_mean"]) == (18, 9, 80)
    assert line["wait_share_of_latency"] == pytest.approx(720 / 3300)
    assert (line["local"], line["local_waited"]) == (8, 1)
    assert line["convoy_share_of_latency"] == pytest.approx(80 / (4 * 200 + 4 * 150))
    assert tables.row("convoy", run="hand", group=0)["convoy_share_of_latency"] is None, "nothing local there"
    slow = tables.row("paths", run="hand", name="slow")
    assert (slow["messages"], slow["messages_share"], slow["latency_ns_mean_with"]) == (1, 0.1, 200)
    assert slow["latency_ns_mean_without"] == 150
    west = tables.row("fairness", run="hand", side="destination", region="west")
    assert west["latency_ns_mean"] == pytest.approx(3300 / 18)
    assert west["ratio_to_best"] == pytest.approx(3300 / 18 / 100)
    assert tables.row("fairness", run="hand", side="sender", region="east")["latency_ns_mean"] == pytest.approx(
        1400 / 9
    )


def test_convoy_share_equals_noted_waits(tables: Tables, runs: tuple[Path, dict[str, Any]]) -> None:
    """Of a simulated run: the same sum in plain Python."""
    folder = runs[0] / "simulated"
    span = tables.row("spans", run="simulated")
    sent = {
        row["message"]: row["at_ns"]
        for row in pq.read_table(folder / "multicasts").to_pylist()
        if len(row["destinations"]) == 1 and span["low_ns"] <= row["at_ns"] <= span["high_ns"]
    }
    groups = {row["process"]: row["group"] for row in pq.read_table(folder / "processes").to_pylist()}
    latency: dict[int, float] = {}
    for row in pq.read_table(folder / "deliveries").to_pylist():
        if row["message"] in sent:
            latency[row["group"]] = latency.get(row["group"], 0) + row["at_ns"] - sent[row["message"]]
    waited = dict.fromkeys(latency, 0.0)
    for row in pq.read_table(folder / "notes").to_pylist():
        if row["name"] == "convoy" and row["message"] in sent:
            waited[groups[row["process"]]] += row["value"]
    assert sum(waited.values()) > 0
    for group, total in latency.items():
        line = tables.row("convoy", run="simulated", group=group)
        assert line["convoy_share_of_latency"] == pytest.approx(waited[group] / total)


def test_recovery(tables: Tables) -> None:
    zero, one = tables.rows("recovery", run="hand")
    assert (zero["fault"], zero["process"], zero["fault_ns"]) == ("crash", 2, 4500)
    assert (zero["next_delivery_after_ns"], zero["new_message_after_ns"], zero["longest_silence_ns"]) == (
        1600,
        1600,
        2000,
    )
    assert (one["next_delivery_after_ns"], one["new_message_after_ns"], one["longest_silence_ns"]) == (650, 650, 1050)


def test_cell_agrees_with_measures_of_its_trace(tables: Tables, runs: tuple[Path, dict[str, Any]]) -> None:
    line, cell = tables.row("summary", run="simulated"), runs[1]
    for name in ("throughput_per_s", "latency_ns_mean", "latency_ns_p50", "latency_ns_p99", "latency_ns_max"):
        assert line[name] == pytest.approx(cell[name]), name
    assert (line["multicasts"], line["deliveries"], line["seed"]) == (60, cell["deliveries"], 5)
    # A packet in flight when the run ends was sent, but is in no trace.
    assert line["packets_per_multicast"] == pytest.approx(cell["packets"] / 60, rel=0.02)
    assert tables.row("comparison", protocol="primcast")["runs"] == 1


def test_sketches_are_within_half_a_percent(sketch_tables: Tables) -> None:
    line = sketch_tables.row("latency", run="hand", by="all")
    assert (sketch_tables.result.method, line["method"], line["count"]) == ("sketch", "sketch", 15)
    assert line["latency_ns_mean"] == pytest.approx(2100 / 15)
    for name, exact in (("min", 100), ("p50", 150), ("p95", 200), ("max", 200)):
        assert line[f"latency_ns_{name}"] == pytest.approx(exact, rel=0.005)


def test_overlay_order_ranks_destinations(sketch_tables: Tables) -> None:
    first, second = sketch_tables.rows("latency", run="hand", by="rank")
    assert (first["count"], second["count"]) == (10, 5)
    assert second["latency_ns_max"] == pytest.approx(100, rel=0.005)


# Without Spark


def test_runs_with_equal_names_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    write_known_run(tmp_path / "runs" / "one")
    write_known_run(tmp_path / "runs" / "two")
    with pytest.raises(UsageError, match=r"run 'hand' is in .*one and in .*two; expected runs of different names"):
        measure(spark, str(tmp_path / "runs"), tmp_path / "out")


def test_foreign_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with pytest.raises(UsageError, match="not empty, and no measures"):
        prepare_folder(tmp_path)


def test_sweep_without_traces_is_measured_from_cells(tmp_path: Path) -> None:
    plan = normalise_plan(PLAN, "plan")
    cells = [
        {**dict.fromkeys((*SUMMARY, "cell", "packets", "bytes")), "cell": f"c{seed}", "seed": seed, "status": "ok",
         "plan": json.dumps({**plan, "seed": seed}), "multicasts": 10, "packets": 50,
         "throughput_per_s": value}
        for seed, value in ((0, 10.0), (1, 14.0))
    ]  # fmt: skip
    result = measure_cells(cells, tmp_path / "m")
    (line,) = pq.read_table(tmp_path / "m" / "comparison.parquet").to_pylist()
    assert result.tables == {"summary": 2, "comparison": 1}
    assert tuple(line) == COMPARISON
    assert line["throughput_per_s"] == 12
    assert line["throughput_per_s_high"] == pytest.approx(12 + 12.706 * 2)
    assert line["packets_per_multicast"] == 5


def test_intervals() -> None:
    assert confidence_interval([]) == (None, None, None)
    assert confidence_interval([3.0]) == (3.0, None, None)
    mean, low, high = confidence_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == (2.0, pytest.approx(2 - 4.303 / 3**0.5), pytest.approx(2 + 4.303 / 3**0.5))
