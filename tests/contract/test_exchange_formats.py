"""Every format of the registries keeps the contracts of orchestrator/exchange."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.analysis.points import StoredPoint
from orchestrator.exchange.export_formats import EXPORT_FORMATS
from orchestrator.exchange.exported import ExportedFile, LeftOutPoint
from orchestrator.exchange.import_formats import IMPORT_FORMATS
from orchestrator.exchange.imported import ImportFile, UnreadableFiles
from orchestrator.exchange.importing import ImportNames, read_files, store_points
from orchestrator.plan.current import StoredExperiment
from orchestrator.results.records import Figures
from orchestrator.results.store import Store
from tests.unit.plan.stored_sweeps import planned, store_sweep

FOLDER = Path(__file__).with_name("exchange")
IMPORTS = IMPORT_FORMATS.shipped()
EXPORTS = EXPORT_FORMATS.shipped()


def files_of(name: str) -> list[Path]:
    """The files that the real tool wrote for a format."""
    return sorted(path for path in (FOLDER / name).iterdir() if path.suffix != ".md")


def opened(name: str) -> list[ImportFile]:
    return [file.file for file in read_files(files_of(name))]


@pytest.mark.parametrize("name", IMPORTS)
def test_a_format_has_files_of_its_tool(name: str) -> None:
    assert files_of(name)


@pytest.mark.parametrize("name", IMPORTS)
def test_a_format_recognises_its_own_files_and_no_others(name: str) -> None:
    for other in IMPORTS:
        for file in opened(other):
            assert IMPORT_FORMATS[name].recognises(file) == (other == name), file.name


@pytest.mark.parametrize("name", IMPORTS)
@pytest.mark.parametrize("document", [None, 1, "text", [], {}, {"metrics": {}}, [{"metadata": 1}]])
def test_a_format_does_not_recognise_what_is_no_file_of_its_tool(
    name: str, document: object
) -> None:
    assert not IMPORT_FORMATS[name].recognises(ImportFile("a", "0" * 64, [document]))
    assert not IMPORT_FORMATS[name].recognises(ImportFile("a", "0" * 64, []))


@pytest.mark.parametrize("name", IMPORTS)
def test_a_file_of_its_tool_with_nothing_in_it_is_refused_with_reasons(name: str) -> None:
    reader = IMPORT_FORMATS[name]
    for file in opened(name):
        (first, *_) = file.documents
        assert isinstance(first, dict)
        emptied = ImportFile(file.name, file.sha256, [dict.fromkeys(first)])
        if not reader.recognises(emptied):
            continue
        with pytest.raises(UnreadableFiles) as caught:
            reader.read([emptied])
        assert all(caught.value.reasons[file.name])


@pytest.mark.parametrize("name", IMPORTS)
def test_points_have_figures_with_definitions_and_a_load(name: str) -> None:
    for file in read_files(files_of(name)):
        for point in file.points:
            assert point.figures.ttft_ms is not None
            assert point.figures.output_token_throughput is not None
            assert point.load.control in ("request_rate", "concurrency")
            assert point.load.level > 0
            assert point.definitions.keys() <= set(Figures.__slots__)
            present = {
                figure for figure in point.definitions if getattr(point.figures, figure) is None
            }
            assert present == set(), "a definition of a figure that the point does not have"
            assert point.aggregates
            assert all(count > 0 for count in point.left_out.values())


@pytest.mark.parametrize("name", IMPORTS)
def test_points_are_stored_whole_and_verified(name: str, tmp_path: Path) -> None:
    store = Store.open(str(tmp_path), "imported")
    files = read_files(files_of(name))
    store_points(store, files, ImportNames("tp2", "chat"))
    points = StoredExperiment(store).points().current
    assert len(points) == sum(len(file.points) for file in files)
    assert {point.deployment.label for point in points} == {"tp2"}
    assert {point.head.workload for point in points} == {"chat"}
    assert not store.damage
    for point in points:
        throughput = point.output_token_throughput()
        assert throughput is not None
        assert throughput.estimate == pytest.approx(point.figures.output_token_throughput)
    # computed again from the files alone, as by a reader whose computed rows are gone
    again = Store.open(str(tmp_path), "imported")
    for folder in (tmp_path / "imported/computed").rglob("*.parquet"):
        folder.unlink()
    assert [figures_text(point) for point in StoredExperiment(again).points().current] == [
        figures_text(point) for point in points
    ]


def figures_text(point: StoredPoint) -> str:
    return repr(point.figures)  # NaN equals itself only as text


@pytest.fixture
def measured(tmp_path: Path) -> StoredExperiment:
    store = Store.open(str(tmp_path), "exp")
    store_sweep(store, planned())
    return StoredExperiment(store)


@pytest.mark.parametrize("name", EXPORTS)
def test_each_point_is_written_or_left_out_with_a_reason(
    name: str, measured: StoredExperiment
) -> None:
    written = 0
    left_out: list[str] = []
    names: list[str] = []
    for item in EXPORT_FORMATS[name].files(measured):
        if isinstance(item, ExportedFile):
            written += item.points
            names.append(item.name)
        else:
            assert isinstance(item, LeftOutPoint)
            left_out.append(item.reason)
    assert written + len(left_out) == len(measured.points().current)
    assert written
    assert all(left_out)
    assert len(set(names)) == len(names)
    assert all("/" not in file_name and file_name.endswith(".json") for file_name in names)


@pytest.mark.parametrize("name", EXPORTS)
def test_points_of_other_tools_are_written_as_theirs_or_not_at_all(
    name: str, tmp_path: Path
) -> None:
    store = Store.open(str(tmp_path), "imported")
    store_points(store, read_files(files_of("guidellm")), ImportNames(None, "prompts"))
    for item in EXPORT_FORMATS[name].files(StoredExperiment(store)):
        if isinstance(item, ExportedFile):
            assert "GuideLLM" in repr(item.document)
        else:
            assert "GuideLLM" in item.reason
