"""Files that people write: whatever their bytes are, they are read, or an error says what to do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli._nodefile import read_nodes
from aliquot.cli._poolfile import read_pool_file
from aliquot.cli.localpool import Layout
from aliquot.cli.supply.file import read_supply_file
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.own_files import make_private
from aliquot.plan.traces import read_requests


def names(path: Path, text: str | bytes) -> list[tuple[str, list[str]]]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [(node.name, [device.model for device in node.devices]) for node in read_nodes(path)]


@pytest.mark.parametrize(
    "text",
    [
        "name, model, gpus\nnode-1, A100-80, 2\n",
        "Name,Model,GPUs\r\nnode-1,A100-80,2\r\n",
        "name;model;gpus\nnode-1;A100-80;2\n",
        "name\tmodel\tgpus\nnode-1\tA100-80\t2.0\n\t\t\n\n",
        'name,model,gpus\r"node-1","A100-80",2,,\r',
        "name;model;gpus;;\nnode-1;A100-80;2;;\n",
        '\ufeffname,model,gpus\n"node-1","A100-80","2"\n',
    ],
)
def test_spreadsheets_write_csv_in_many_ways(tmp_path: Path, text: str) -> None:
    assert names(tmp_path / "nodes.csv", text) == [("node-1", ["A100-80"] * 2)]


@pytest.mark.parametrize(
    ("name", "text", "says", "hint"),
    [
        ("a.csv", "name,model,gpus\nMünchen,A100-80,2\n".encode("latin-1"), "line 2 is not UTF-8", "iconv"),
        ("a.csv", "name,model,gpus\n", "describes no node", "a line"),
        ("a.csv", "name,model,gpus\nn,A100-80,2.5\n", "line 2: gpus is '2.5'", "whole"),
        ("a.csv", "name,model,gpus\nn,A100-80,1000000000\n", "line 2: gpus is '1000000000'", "from 0 to 256"),
        ("a.csv", "name,model,gpus,cpu_milli\nn,A100-80,1,lots\n", "line 2: cpu_milli is 'lots'", "whole"),
        ("a.csv", "name,model,gpus,memory_mib\nn,A100-80,1,1.5\n", "line 2: memory_mib is '1.5'", "whole"),
        ("a.csv", "name,model,gpus\nn,A100-80,2,8\n", "line 2 has more cells than the head", "quotes"),
        ("a.csv", "name;model;GPUs;gpus\nn;A100-80;2;8\n", "more than one column 'gpus'", "one of them"),
        ("a.yaml", "nodes:\n  - name: 01\n    devices: [{model: A100-80}]\n", "nodes[0].name: 1 is a number", '"…"'),
        ("a.yaml", "nodes:\n  - name: n\n    devices: [{model: 3090}]\n", "model: 3090 is a number", "quotes"),
        ("a.yaml", "nodes:\n  - name: yes\n    devices: [{model: A100-80}]\n", "True is yes or no", "quotes"),
        ("a.yaml", "nodes:\n\t- name: n\n", "can't be read", "never with tabs"),
        ("a.json", "[" * 100_000, "can't be read", ".json"),
    ],
)
def test_what_can_t_be_read_is_said(tmp_path: Path, name: str, text: str | bytes, says: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        names(tmp_path / name, text)
    assert says in error.value.message
    assert hint in error.value.hint
    assert error.value.message.count(str(tmp_path / name)) == 1


def test_a_file_that_never_ends() -> None:
    with pytest.raises(ConfigError, match="longer than 256 MiB"):
        read_pool_file(Path("/dev/zero"))


def test_a_misspelt_column_of_a_list_of_requests(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("gpu,duration\n0.5,60\n")
    with pytest.raises(ConfigError, match="'duration'") as error:
        read_requests(path)
    assert "did you mean duration_s?" in error.value.hint


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("gpu,gang\n0.5,-1\n", "2: gang is '-1'", "4096"),
        ("gpu,gang\n0.5,4097\n", "2: gang is '4097'", "4096"),
        ("gpu;arrival_s\n0.5;1,5\n", "2: arrival_s is '1,5'", "1.5"),
        ("gpu,arrival_s\n0.5,0\n0.5,nan\n", "3: arrival_s is 'nan'", "seconds"),
        ("gpu,duration_s\n0.5,inf\n", "2: duration_s is 'inf'", "seconds"),
        ("gpu,duration_s\n0.5,-60\n", "2: duration_s is '-60'", "seconds"),
        ("num_gpu,gpu_milli\n-1,1000\n", "2: num_gpu is '-1'", "whole"),
        ("num_gpu,gpu_milli,deletion_time\n1,1000,soon\n", "2: deletion_time is 'soon'", "seconds"),
        ("name,gpu\na,0.5,10Gi\n", "line 2 has more cells than the head", '"0.5,10Gi"'),
    ],
)
def test_a_request_that_could_not_be_is_named_with_its_line(tmp_path: Path, text: str, says: str, hint: str) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_requests(path)
    assert says in error.value.message
    assert hint in error.value.hint


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_lists_of_requests_are_separated_by_whatever_the_spreadsheet_of_a_country_writes(
    tmp_path: Path, separator: str
) -> None:
    path = tmp_path / "requests.csv"
    rows = [["Name", "GPU", "arrival_s", "duration_s"], ["a", '"0.5,10Gi"', "1.5", "60.0"]]
    path.write_text("\n".join(separator.join(row) for row in rows))
    (request,) = read_requests(path)
    assert (request.name, request.demand.share_milli, request.demand.memory_bytes) == ("a", 500, 10 << 30)
    assert (request.arrival_s, request.duration_s) == (1.5, 60.0)


@given(data=st.binary(max_size=200), ending=st.sampled_from([".yaml", ".json", ".toml", ".csv"]))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes, ending: str) -> None:
    path = tmp_path_factory.getbasetemp() / f"any{ending}"
    path.write_bytes(data)
    for read in (read_nodes, read_pool_file, read_supply_file, read_requests):
        try:
            read(path)
        except AliquotError as error:
            assert error.message


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_folders_of_ones_own_are_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_private(tmp_path / "a" / "b" / "c")
        make_private(tmp_path / "a" / "b" / "c")
        Layout.of(tmp_path / "x" / "y").make()
    finally:
        os.umask(before)
    for folder in ("a", "a/b", "a/b/c", "x", "x/y"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700, folder
