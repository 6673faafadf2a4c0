"""The guides for operators name kinds, settings and commands that exist."""

import re
from pathlib import Path

import click
from click.testing import CliRunner
from temporalio.envconfig import ClientConfig
from temporalio.service import TLSConfig

from standfast.cli import main
from standfast.cli.waiting import _HOW
from standfast.temporal.wire import names

ROOT = Path(__file__).parents[2]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()
CLOUD = (ROOT / "docs" / "temporal-cloud.md").read_text()
GUIDES = RUNBOOKS + CLOUD + (ROOT / "docs" / "operations.md").read_text()
NOT_OF_RUNS = {"operator", "unreachable", "unreadable"}  # kinds that a client finds, and no run knows of


def test_there_is_a_runbook_for_each_kind_that_a_run_waits_for() -> None:
    kinds = {kind for kind in _HOW if kind != "skip"} | NOT_OF_RUNS
    in_code = {
        kind
        for path in (ROOT / "standfast" / "temporal").rglob("*.py")
        for kind in re.findall(r'(?:Waiting\(\s*|"kind": |kind=)"([a-z]+)"', path.read_text())
    }
    assert in_code <= kinds
    assert set(re.findall(r"^### (\w+)$", RUNBOOKS, re.MULTILINE)) == kinds


def test_the_guides_give_commands_and_options_that_exist() -> None:
    found = re.findall(r"`?\bstandfast ([a-z]+)((?: [^`\n|#]*)?)", GUIDES)
    commands = {word: rest for word, rest in found if word in main.commands}
    assert {"ls", "pending", "show", "doctor", "approve", "resolve", "resume", "replay", "worker"} <= set(commands)
    for word, rest in found:
        if word not in main.commands:
            continue
        command, under = main.get_command(click.Context(main), word), rest.split()[:1]
        is_group = isinstance(command, click.Group) and bool(under) and under[0] in command.commands
        known = CliRunner().invoke(main, [word, *(under if is_group else []), "--help"]).output
        assert [option for option in re.findall(r"(?<= )--?[a-z][a-z-]*", rest) if option not in known] == [], (
            word,
            rest,
        )


def test_the_search_attributes_to_make_on_temporal_cloud_are_those_that_runs_have() -> None:
    assert dict(re.findall(r"--sa (\w+)=(\w+)", CLOUD)) == names.SEARCH_ATTRIBUTES


def test_the_profiles_for_temporal_cloud_are_read_as_they_stand(tmp_path: Path) -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", CLOUD, re.DOTALL)
    for name in ("client.pem", "client.key"):
        (tmp_path / name).write_text(name)
    config = tmp_path / "temporal.toml"
    config.write_text(block.replace("/run/secrets", str(tmp_path)))
    by_key = ClientConfig.load_client_connect_config("cloud", config_file=str(config), disable_env=True)
    by_certificate = ClientConfig.load_client_connect_config("cloud-mtls", config_file=str(config), disable_env=True)
    assert (by_key["api_key"], by_key["tls"], by_key["namespace"]) == ("…", True, "shop.a1b2c")
    tls = by_certificate["tls"]
    assert isinstance(tls, TLSConfig)
    assert (tls.client_cert, tls.client_private_key) == (b"client.pem", b"client.key")
