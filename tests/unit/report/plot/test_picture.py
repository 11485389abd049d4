"""``orchestrator results --plot``: what it writes and what it refuses."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest

from orchestrator.base.errors import InputError
from orchestrator.report.plot import picture
from orchestrator.report.plot.picture import _groups
from orchestrator.report.plot.points import stored_documents
from orchestrator.results.store import Store
from tests.unit.cli.commands import invoke
from tests.unit.plan.stored_sweeps import planned, planned_mix, store_attempt, store_sweep
from tests.unit.results.builders import commit_measurement, deployment_row, request

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path / "results"), "exp")
    store_sweep(store, planned(levels=[2, 4]))
    return store


def texts_of(path: Path) -> list[str]:
    """All texts of an SVG."""
    root = ElementTree.parse(path).getroot()
    assert {element.tag for element in root.iter()}.isdisjoint({f"{SVG}script", f"{SVG}image"})
    return ["".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")]


def test_an_svg_has_the_frontier_and_the_curves(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "points.svg"
    done = invoke("results", store.uri, "--plot", str(path))
    assert (done.status, done.stdout) == (0, f"{path}: 4 points\n")
    texts = texts_of(path)
    assert "chat of exp: some-org/m on cpu" in texts
    for text in ("frontier", "emulator seqs=8", "emulator seqs=16", "requests in flight"):
        assert text in texts
    assert texts.count("requests in flight") == 4
    assert [each.name for each in tmp_path.iterdir() if "partial" in each.name] == []


def test_the_same_points_give_the_same_bytes(store: Store, tmp_path: Path) -> None:
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        invoke("results", store.uri, "--plot", str(path))
    content = paths[0].read_bytes()
    assert content == paths[1].read_bytes()
    assert b"<dc:date>" not in content


def test_a_png_is_written(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "points.PNG"
    assert invoke("results", store.uri, "--plot", str(path)).status == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_only_selected_points_are_drawn(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "points.svg"
    done = invoke("results", store.uri, "--plot", str(path), "--where", "max_num_seqs == 8")
    assert done.stdout == f"{path}: 2 points\n"
    assert "emulator seqs=16" not in texts_of(path)


def test_foreign_names_are_text(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "results"), "exp")
    label = "</text><script>alert(1)</script> $\\frac$ _\x1b]0;\x00&"
    row = deployment_row("d0", label=label, model=label)
    commit_measurement(store, "m0", [request(0), request(1, 50)], deployment=row, workload="_$")
    path = tmp_path / "points.svg"
    assert invoke("results", store.uri, "--plot", str(path)).status == 0
    assert any("</text><script>alert(1)</script> $\\frac$" in text for text in texts_of(path))


@pytest.mark.parametrize("name", ["points.pdf", "points", "points.svg.gz"])
def test_another_ending_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(InputError, match=r"ends in \.svg or \.png"):
        invoke("results", store.uri, "--plot", str(path))
    assert not path.exists()


def test_a_folder_that_is_not_there_is_said(store: Store, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        invoke("results", store.uri, "--plot", str(tmp_path / "nowhere" / "a.png"))


@pytest.mark.parametrize("option", ["--format=json", "--launches", "--profile", "--columns=level"])
def test_options_of_tables_are_refused(store: Store, tmp_path: Path, option: str) -> None:
    with pytest.raises(click.UsageError, match="in place of a table"):
        invoke("results", store.uri, "--plot", str(tmp_path / "a.svg"), option)


def test_without_a_point_nothing_is_written(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "points.svg"
    with pytest.raises(InputError, match="no point there has figures to draw"):
        invoke("results", store.uri, "--plot", str(path), "--where", "level > 100")
    assert not path.exists()


def test_without_matplotlib_the_sentence_says_what_to_install(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pictures need matplotlib: pip install"):
        invoke("results", store.uri, "--plot", str(tmp_path / "a.svg"))


def test_points_with_all_requests_due_at_once_are_named(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "results"), "exp")
    row = deployment_row()
    for name, level in (("m0", 4.0), ("m1", math.inf)):
        rows = [request(0), request(1, 50)]
        commit_measurement(store, name, rows, deployment=row, point_id=name, level=level)
    path = tmp_path / "points.svg"
    done = invoke("results", store.uri, "--plot", str(path))
    what = "all requests due at once (label-d0)"
    assert done.stdout == f"{path}: 2 points\nnot drawn: over load {what}\n"
    assert f"without curves: {what}" in texts_of(path)


def test_where_all_requests_were_due_at_once_no_curve_is_empty(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "results"), "exp")
    commit_measurement(
        store, "m0", [request(0), request(1, 50)], deployment=deployment_row(), level=math.inf
    )
    path = tmp_path / "points.svg"
    invoke("results", store.uri, "--plot", str(path))
    assert "load (requests/s)" not in texts_of(path)

    mix = store_of_rates(tmp_path / "mix", [math.inf])
    done = invoke("results", mix.uri, "--plot", str(path))
    at_once = "all requests due at once"
    assert done.stdout == (
        f"{path}: 1 point\n"
        f"not drawn: over load {at_once} (label-d0), chat: {at_once}, rag: {at_once}\n"
    )
    assert "load (requests/s)" not in texts_of(path)
    titles = [text for text in texts_of(path) if " of exp" in text]
    assert len(titles) == 1 and titles[0].startswith("office of exp")
    with pytest.raises(InputError, match=f"--part 'rag' has no curves: {at_once}"):
        invoke("results", mix.uri, "--plot", str(path), "--part", "rag")


def store_of_rates(folder: Path, rates: list[float]) -> Store:
    """Requests of two parts, chat and rag, of one deployment, measured at these rates."""
    store = Store.open(str(folder), "exp")
    rows = [request(number, 50 * number, part=("chat", "rag")[number % 2]) for number in range(4)]
    for rate in rates:
        name = f"at-{rate}"
        kept = {"point_id": name, "level": rate, "workload": "office"}
        commit_measurement(store, name, rows, deployment=deployment_row(), **kept)
    return store


def test_of_a_part_only_points_on_its_curves_are_counted(tmp_path: Path) -> None:
    store = store_of_rates(tmp_path / "mix", [2.0, math.inf])
    path = tmp_path / "points.svg"
    done = invoke("results", store.uri, "--plot", str(path), "--part", "rag")
    assert done.stdout == (
        f"{path}: 1 point, by part: rag\nnot drawn: over load all requests due at once (label-d0)\n"
    )
    done = invoke("results", store.uri, "--plot", str(path))
    assert done.stdout.startswith(f"{path}: 2 points, by part: chat, rag\n")


@pytest.fixture
def store_of_mix(tmp_path: Path) -> Store:
    store = Store.open(str(tmp_path / "mix"), "exp")
    plan = planned_mix(levels=[2, 4])
    store.write_plan(plan.to_json())
    for point in plan.points:
        is_best = point.deployment_id == plan.points[-1].deployment_id
        ttft_ms = {"chat": 100, "rag": 400}
        store_attempt(store, plan, point, ttft_ms=ttft_ms, tokens=16 if is_best else 8)
    return store


def test_each_part_of_a_mix_has_curves_below_those_of_the_whole(
    store_of_mix: Store, tmp_path: Path
) -> None:
    path = tmp_path / "points.svg"
    done = invoke("results", store_of_mix.uri, "--plot", str(path))
    assert done.stdout == f"{path}: 4 points, by part: chat, rag\n"
    texts = texts_of(path)
    titles = ["office of exp", "office: chat of exp", "office: rag of exp"]
    for title in titles:
        assert f"{title}: some-org/m on cpu" in texts
    # the whole has four curves, and so has each part; the frontier has another axis
    assert texts.count("requests in flight") == 4 * len(titles)
    # the name in the legend, which parts do not have: they have no tokens/s per device
    assert texts.count("frontier") == 1


def test_a_part_keeps_the_colours_of_its_deployments(store_of_mix: Store) -> None:
    documents = stored_documents(store_of_mix.uri)[::-1]
    whole, chat, rag = _groups(documents)
    for part in (chat, rag):
        ranks = [(each.label, each.rank) for each in part.series]
        assert ranks == [(each.label, each.rank) for each in whole.series]
    # the best comes first, although the documents begin with another
    assert whole.series[0].label != documents[0].label


def test_one_part_can_be_drawn_alone(store_of_mix: Store, tmp_path: Path) -> None:
    path = tmp_path / "points.svg"
    done = invoke("results", store_of_mix.uri, "--plot", str(path), "--part", "rag")
    assert done.stdout == f"{path}: 4 points, by part: rag\n"
    titles = [text for text in texts_of(path) if " of exp" in text]
    assert titles == ["office: rag of exp: some-org/m on cpu"]


def test_an_unknown_part_is_refused_with_those_there_are(
    store: Store, store_of_mix: Store, tmp_path: Path
) -> None:
    options = ("--plot", str(tmp_path / "a.svg"), "--part", "vision")
    with pytest.raises(InputError, match="--part 'vision': the parts there are chat, rag"):
        invoke("results", store_of_mix.uri, *options)
    with pytest.raises(InputError, match="no point there is of a mix"):
        invoke("results", store.uri, *options)
    with pytest.raises(click.UsageError, match="--part says what --plot draws"):
        invoke("results", store_of_mix.uri, "--part", "chat")


def test_whole_points_have_room_before_parts(
    store_of_mix: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Store.open(str(tmp_path / "mix"), "other")
    store_sweep(other, planned(name="other"))
    monkeypatch.setattr(picture, "MOST_GROUPS", 3)
    path = tmp_path / "points.svg"
    done = invoke("results", str(tmp_path / "mix"), "--plot", str(path))
    assert done.stdout == (
        f"{path}: 6 points, by part: chat\nnot drawn: office: rag of exp: some-org/m on cpu\n"
    )
