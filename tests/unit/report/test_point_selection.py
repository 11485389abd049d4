"""Which points are shown: rules, orders, numbers and columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.points import load_points
from orchestrator.analysis.slo import parse_slo
from orchestrator.base.errors import InputError
from orchestrator.report.documents.point import PointDocument, point_document
from orchestrator.report.point_selection import parse_query
from orchestrator.results.store import Store
from tests.unit.results.builders import commit_measurement, deployment_row, request


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Levels 1, 2 and 4 of two deployments, the second on two devices; 4 of the second failed."""
    store = Store.open(str(tmp_path), "exp")
    for deployment, devices in (("d0", 1), ("d1", 2)):
        described = deployment_row(
            deployment,
            devices=devices,
            settings_json=f'{{"engine": "vllm", "tensor_parallel_size": {devices}}}',
        )
        for level in (1, 2, 4):
            rows = [
                request(
                    at, at * 100, first_ms=at * 100 + 100 * level, last_ms=at * 100 + 900, tokens=4
                )
                for at in range(100)
            ]
            name = f"{deployment}-{level}"
            failed = name == "d1-4"
            commit_measurement(
                store,
                name,
                [] if failed else rows,
                deployment=described,
                deployment_id=deployment,
                point_id=name,
                level=float(level),
                status="failed" if failed else "ok",
                reason="It died." if failed else None,
            )
    return store


@pytest.fixture
def documents(store: Store) -> list[PointDocument]:
    return [point_document(point) for point in load_points(store)]


def selected(
    documents: list[PointDocument],
    where: str | None = None,
    sort: str | None = None,
    top: int | None = None,
) -> list[str]:
    """The names of the points, in their order."""
    selection = parse_query(where, sort, top, None).selection
    return [document.point.head.point_id for document in selection.select(documents)]


def test_without_options_all_points_stay_as_they_are(documents: list[PointDocument]) -> None:
    assert selected(documents) == ["d0-1", "d0-2", "d0-4", "d1-1", "d1-2", "d1-4"]
    assert parse_query(None, None, None, None).selection.is_everything


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        ("tensor_parallel_size == 2", ["d1-1", "d1-2", "d1-4"]),
        ("settings.tensor_parallel_size == 2 and level >= 2", ["d1-2", "d1-4"]),
        ("ttft_ms.p50 < 150", ["d0-1", "d1-1"]),
        ("deployment == 'label-d0' and not level == 2", ["d0-1", "d0-4"]),
        ("level in [1, 4] and validity == 'valid'", ["d0-1", "d0-4", "d1-1", "d1-4"]),
        ("ttft_ms.p50 is None", ["d1-4"]),
    ],
)
def test_a_rule_reads_columns_and_settings(
    rule: str, names: list[str], documents: list[PointDocument]
) -> None:
    assert selected(documents, rule) == names


def test_a_point_that_lacks_what_a_rule_reads_does_not_match(
    documents: list[PointDocument],
) -> None:
    assert "d1-4" not in selected(documents, "ttft_ms.p50 > 0")


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("tensor_paralel_size == 2", "did you mean 'tensor_parallel_size'"),
        ("ttft_ms.p98 < 1", "did you mean 'ttft_ms.p9"),
        ("request_rate > 20", "unknown field 'request_rate'; did you mean 'level'?"),
        ("req/s > 20", "did you mean 'level'?"),
        ("validity == valid", "unknown field 'valid'"),
        ("zzz == 1", "text needs quotes"),
        ("level =", "is not an expression"),
        ("__import__('os').system('true')", "is not allowed"),
        ("(lambda: 1)()", "is not allowed"),
        ("level.__class__ == 1", "unknown field 'level.__class__'"),
    ],
)
def test_a_rule_that_cannot_be_read_says_why(rule: str, sentence: str) -> None:
    with pytest.raises(InputError, match=r"^--where: ") as error:
        parse_query(rule, None, None, None)
    assert sentence in str(error.value)


def test_a_rule_that_makes_no_sense_is_refused(documents: list[PointDocument]) -> None:
    with pytest.raises(InputError, match="--where: .* has no value"):
        selected(documents, "deployment > 4")


def test_points_are_sorted_by_several_columns_and_those_without_a_value_come_last(
    documents: list[PointDocument],
) -> None:
    assert selected(documents, sort="-ttft_ms.p50,deployment") == [
        *("d0-4", "d0-2", "d1-2", "d0-1", "d1-1"),
        "d1-4",  # has no value
    ]
    assert selected(documents, sort="ttft_ms.p50,-deployment") == [
        *("d1-1", "d0-1", "d1-2", "d0-2", "d0-4"),
        "d1-4",  # has no value
    ]
    descending = selected(documents, sort="level:desc")
    assert descending == selected(documents, sort="-level")
    assert selected(documents, sort="level:asc") == selected(documents, sort="level")


def test_top_alone_takes_the_most_tokens_per_device(documents: list[PointDocument]) -> None:
    (best,) = selected(documents, top=1)
    assert best.startswith("d0-")  # as many tokens as the other one, on half the devices
    assert len(selected(documents, top=4)) == 4
    assert selected(documents, sort="level", top=2) == ["d0-1", "d1-1"]
    assert selected(documents, "level > 1", "level", 1) == ["d0-2"]


@pytest.mark.parametrize(
    ("sort", "sentence"),
    [
        ("ttft_ms.p9", "did you mean 'ttft_ms.p9"),
        ("level:down", "the order is :asc or :desc"),
        ("level,", "write names with commas"),
        ("", "write names with commas"),
    ],
)
def test_an_order_that_cannot_be_read_says_why(sort: str, sentence: str) -> None:
    with pytest.raises(InputError, match="--sort") as error:
        parse_query(None, sort, None, None)
    assert sentence in str(error.value)


def test_named_columns_have_their_names_and_values(documents: list[PointDocument]) -> None:
    query = parse_query(None, None, None, "deployment,level,ttft_ms.p50,tensor_parallel_size")
    rows = [[shown.value(document) for shown in query.columns] for document in documents]
    assert rows[1] == ["label-d0", 2.0, pytest.approx(200.0), 1]
    assert rows[-1] == ["label-d1", 4.0, None, 2]
    first = next(iter(query.objects(documents)))
    assert list(first)[:3] == ["deployment", "level", "ttft_ms.p50"]
    assert first["settings.tensor_parallel_size"] == 1
    assert (first["level"], first["ttft_ms.p50"]) == (1.0, pytest.approx(100.0))


def test_titles_of_named_columns_are_broken_at_dots_and_underscores() -> None:
    query = parse_query(None, None, None, "output_token_throughput,deployment")
    titles = [shown.column.title for shown in query.columns]
    assert titles == ["output_\ntoken_\nthroughput", "deployment"]


def test_an_unknown_column_comes_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"--columns: unknown column 'levels'; did you mean"):
        parse_query(None, None, None, "levels")


@pytest.mark.parametrize("name", ["attainment", "slos.tight.attainment"])
def test_the_value_of_a_figure_is_the_column_of_its_name(name: str) -> None:
    with pytest.raises(InputError, match=f"unknown column '{name}.value'; did you mean '{name}'"):
        parse_query(None, None, None, f"{name}.value", ["slo", "tight"])


def test_columns_of_each_slo_can_be_named(store: Store) -> None:
    slos = (parse_slo("ttft<=450ms"), parse_slo("ttft<=150ms").model_copy(update={"name": "tight"}))
    documents = [point_document(point, slos) for point in load_points(store, *slos)]
    rule = "slos.tight.attainment == 1 and slos.slo.attainment == attainment"
    selection = parse_query(rule, "-slos.slo.attainment", None, None, ["slo", "tight"]).selection
    assert [each.point.head.point_id for each in selection.select(documents)] == ["d0-1", "d1-1"]
    with pytest.raises(InputError, match="unknown field 'slos.loose.attainment'; did you mean"):
        parse_query("slos.loose.attainment > 0", None, None, None, ["slo", "tight"])


def test_one_class_of_errors_can_be_asked_for(documents: list[PointDocument]) -> None:
    assert selected(documents, "errors.timeout is None") == [
        document.point.head.point_id for document in documents
    ]
