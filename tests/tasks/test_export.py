"""A policy's folder and card, and its upload to a hub that is a server of the test's own."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from envs.errors import ConfigError
from tasks.tracking.export import CARD, export_policy, push
from tasks.tracking.lineage_record import CodeVersion
from tasks.verl.policies import ADAPTER
from tests.support.lineage_toy import lineage_of
from tests.support.tiny_model import save_tiny_model


class Hub(ThreadingHTTPServer):
    """Takes repositories and commits as the hub's API does, all files in the commit itself."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.tokens.add(self.headers.get("Authorization"))
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self._answer({"error": "Invalid token"}, status=401)
        if self.path == "/api/repos/create":
            self.server.repositories.append(json.loads(body))
            return self._answer({"url": f"{self.server.url}/me/agent"})
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            return self._answer(
                {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
            )
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            return self._answer({"commitUrl": f"{self.server.url}/me/agent/commit/1", "commitOid": "1"})
        return self._answer({}, status=200 if self.path == "/api/validate-yaml" else 404)

    def do_GET(self) -> None:
        self._answer({"sha": "0", "siblings": [], "id": "me/agent"})

    def _answer(self, body: dict[str, Any], *, status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Of a run of one pipeline, as far as an export reads it."""
    folder = tmp_path / "textcraft-cpu"
    save_tiny_model(folder / "policy")
    (folder / "data").mkdir()
    (folder / "data" / "train.jsonl").write_text("{}\n")
    counts = {"episodes": 8, "dropped": 0}
    success = {"greedy": {"success": 0.5, **counts}, "sampled": {"success": 0.25, **counts}}
    (folder / "evaluation.json").write_text(json.dumps({"before": success, "after": success}))
    return folder


def test_an_exported_folder_loads_and_says_where_it_comes_from(workspace: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    target = tmp_path / "out"
    export_policy(workspace, policy="final", target=target)
    AutoModelForCausalLM.from_pretrained(target)
    AutoTokenizer.from_pretrained(target)
    card = (target / CARD).read_text()
    assert card.startswith("---\nlibrary_name:")
    assert "# textcraft-cpu: final policy" in card
    assert "Success on the test split: 25.0% before, 25.0% after training." in card
    assert "- md5.data/train.jsonl: `8a80554c91d9fca8acb82f023de02f11`" in card
    with pytest.raises(ConfigError, match="out exists; give a folder that does not"):
        export_policy(workspace, policy="final", target=target)


def test_an_export_is_complete_or_not_there(workspace: Path, tmp_path: Path) -> None:
    target, evaluation = tmp_path / "out", workspace / "evaluation.json"
    content = evaluation.read_text()
    evaluation.write_text("{")
    with pytest.raises(ConfigError, match=r"evaluation\.json is damaged"):
        export_policy(workspace, policy="final", target=target)
    assert not target.exists()
    evaluation.write_text(content)
    (workspace / "policy" / "lost").symlink_to(tmp_path / "nowhere")  # fails as the files are copied
    with pytest.raises(OSError, match="lost"):
        export_policy(workspace, policy="final", target=target)
    assert not target.exists()
    (workspace / "policy" / "lost").unlink()
    export_policy(workspace, policy="final", target=target)
    assert (target / CARD).exists()


def test_a_folder_that_cannot_be_written_is_refused(workspace: Path) -> None:
    with pytest.raises(ConfigError, match=r"/proc cannot be written to .*; choose another --output"):
        export_policy(workspace, policy="final", target=Path("/proc/out"))


def test_the_card_names_the_commit_of_the_run(workspace: Path, tmp_path: Path) -> None:
    lineage_of(workspace, commit="1" * 40, packages={"torch": "0.1", "numpy": "0.2"}).write(workspace)
    export_policy(workspace, policy="final", target=tmp_path / "out")
    card = (tmp_path / "out" / CARD).read_text()
    assert f"- git.commit: `{'1' * 40}`\n- git.dirty: `false`\n" in card
    assert "- version.torch: `0.1`\n" in card
    assert "numpy" not in card


def test_the_card_names_the_commit_that_trained_the_policy(workspace: Path, tmp_path: Path) -> None:
    """Not that of a later stage: the report may have been made again since."""
    lineage = lineage_of(workspace, commit="1" * 40)
    lineage.model_copy(update={"code": CodeVersion(commit="2" * 40)}).write(workspace)
    export_policy(workspace, policy="final", target=tmp_path / "out")
    assert f"- git.commit: `{'1' * 40}`" in (tmp_path / "out" / "README.md").read_text().splitlines()


def test_an_adapter_is_exported_alone_or_within_the_model(workspace: Path, tmp_path: Path) -> None:
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM

    base = save_tiny_model(tmp_path / "base")
    with pytest.raises(ConfigError, match="the final policy was trained in full; leave out --adapter"):
        export_policy(workspace, policy="final", target=tmp_path / "out", is_adapter=True)
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(target_modules="all-linear")
    )
    model.save_pretrained(workspace / "policy" / ADAPTER, save_embedding_layers=False)
    for is_adapter, target in ((False, tmp_path / "merged"), (True, tmp_path / "alone")):
        export_policy(workspace, policy="final", target=target, is_adapter=is_adapter)
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert not (tmp_path / "merged" / ADAPTER).exists()
    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "alone")
    assert {path.name for path in (tmp_path / "alone").iterdir()} == {
        *(CARD, "adapter_config.json", "adapter_model.safetensors")
    }
    assert 'library_name: "peft"' in (tmp_path / "alone" / CARD).read_text()


def test_a_policy_that_is_not_there_is_named_with_those_that_are(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no best policy \(.*train/best is not there\); it has: final"):
        export_policy(workspace, policy="best", target=tmp_path / "out")


def test_a_push_makes_the_repository_and_uploads_every_file(
    workspace: Path, tmp_path: Path, hub: Hub
) -> None:
    target = tmp_path / "out"
    export_policy(workspace, policy="final", target=target)
    assert push(target, repository="me/agent", is_private=True) == f"{hub.url}/me/agent/commit/1"
    assert [(repo["name"], repo["organization"], repo["visibility"]) for repo in hub.repositories] == [
        ("agent", "me", "private")
    ]
    assert hub.files == {file.name: file.read_bytes() for file in target.iterdir()}


def test_a_hub_that_refuses_or_is_gone_is_one_line(
    workspace: Path, tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    export_policy(workspace, policy="final", target=target)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ConfigError) as error:
        push(target, repository="me/agent", is_private=False)
    assert "me/agent was not pushed" in str(error.value)
    assert "401" in str(error.value)
    assert "hf_wrong" not in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="was not pushed"):
        push(target, repository="no such/na/me", is_private=False)
