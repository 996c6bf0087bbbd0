"""Encrypted checkpoints: a run can resume from them only with the key."""

from __future__ import annotations

import json
import logging
import secrets

import pytest
import torch
from click.testing import CliRunner

from hookpoint import Loop, Runner, errors, load_info, load_weights, verify
from hookpoint.callbacks import ModelCheckpoint, ModelSaver
from hookpoint.cli.main import main
from hookpoint.storage.checkpoint import encryption
from hookpoint.storage.checkpoint_store import CheckpointStore

pytest.importorskip("cryptography", reason="needs the extra crypto")


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Start and end each test like a process that was given no key."""
    monkeypatch.setattr(encryption, "_known", {})
    for name in (encryption.VARIABLE, encryption.FILE_VARIABLE):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "run.key"
    file.write_text(secrets.token_hex(32) + "\n")
    return file


def fit(workdir, epochs=1, **options):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    saver = ModelCheckpoint(append_info="epoch_num")
    runner = Runner(
        model, optimizer, torch.nn.MSELoss(), callbacks=[saver], extra_callbacks=[], monitors=[], workdir=workdir, **options
    )
    data = torch.arange(8.0).view(4, 2), torch.arange(4.0).view(4, 1)
    runner.fit(data, epochs=epochs, batch_size=2)
    return model.state_dict()


def checkpoint_of(workdir):
    return max((workdir / "checkpoints").glob("step-*"))


def test_a_run_resumes_from_an_encrypted_checkpoint_bit_for_bit(tmp_path, key):
    expected = fit(tmp_path / "plain", epochs=3)
    fit(tmp_path / "run", epochs=2, checkpoint_key=key)
    encryption._known.clear()
    weights = fit(tmp_path / "run", epochs=3, checkpoint_key=key)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def test_only_the_manifest_can_be_read_without_the_key(tmp_path, key):
    fit(tmp_path / "run", checkpoint_key=key)
    folder = checkpoint_of(tmp_path / "run")
    for file in folder.iterdir():
        if file.name != "manifest.json":
            assert file.read_bytes()[:8] == encryption.MAGIC
            assert b"weight" not in file.read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["encryption"]["cipher"] == "AES-256-GCM"
    assert manifest["format"] == 2


def test_the_key_is_nowhere_in_the_run_folder_or_the_log(tmp_path, key, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("RUN_KEY", key.read_text())
    fit(tmp_path / "run", checkpoint_key="env:RUN_KEY")
    secret = key.read_text().strip()
    everything = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for form in (secret.encode(), bytes.fromhex(secret)):
        assert form not in everything
    assert secret not in caplog.text
    assert secret not in repr(encryption.load_key(key))


def test_a_checkpoint_can_be_verified_listed_and_deleted_without_the_key(tmp_path, key):
    fit(tmp_path / "run", epochs=3, checkpoint_key=key)
    encryption._known.clear()
    assert verify(tmp_path / "run").ok
    assert load_info(tmp_path / "run") == {"epoch_num": 3}
    assert "encrypted" in CliRunner().invoke(main, ["show", str(tmp_path / "run")]).output
    assert CliRunner().invoke(main, ["verify", str(tmp_path / "run")]).exit_code == 0
    assert CliRunner().invoke(main, ["clean", str(tmp_path / "run"), "--yes"]).exit_code == 0
    assert len(verify(tmp_path / "run").rows) == 1


def test_a_missing_key_raises_and_nothing_is_moved_or_loaded(tmp_path, key):
    fit(tmp_path / "run", checkpoint_key=key)
    fingerprint = encryption.load_key(key).fingerprint
    encryption._known.clear()
    before = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    with pytest.raises(
        errors.CannotResume, match=f"is encrypted with the key with fingerprint {fingerprint}, but no key was given"
    ):
        fit(tmp_path / "run", epochs=2)
    assert sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir()) == before
    with pytest.raises(errors.CannotResume, match="no key was given"):
        load_weights(tmp_path / "run")


def test_a_wrong_key_raises_and_nothing_is_moved_or_loaded(tmp_path, key):
    fit(tmp_path / "run", checkpoint_key=key)
    encryption._known.clear()
    wrong = tmp_path / "wrong.key"
    wrong.write_bytes(secrets.token_bytes(32))
    model = torch.nn.Linear(2, 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fingerprint = encryption.Key(wrong.read_bytes()).fingerprint
    with pytest.raises(errors.CannotResume, match=f"the key given has fingerprint {fingerprint}"):
        fit(tmp_path / "run", epochs=2, checkpoint_key=wrong)
    with pytest.raises(errors.CannotResume, match=f"the key given has fingerprint {fingerprint}"):
        Runner(model, resume="must", workdir=tmp_path / "run", checkpoint_key=wrong).predict([torch.ones(1, 2)])
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert verify(tmp_path / "run").ok


@pytest.mark.thin(3)
@pytest.mark.parametrize("place", ["header", "salt", "middle", "tag"])
@pytest.mark.parametrize("name", ["model.safetensors", "state.pt"])
def test_a_flipped_byte_is_detected_by_the_digest_and_by_the_cipher(tmp_path, key, name, place, forge):
    fit(tmp_path / "run", checkpoint_key=key)
    folder = checkpoint_of(tmp_path / "run")
    data = bytearray((folder / name).read_bytes())
    at = {"header": 3, "salt": 10, "middle": len(data) // 2, "tag": len(data) - 1}[place]
    data[at] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(errors.DamagedCheckpoint, match=f"{name} changed after it was written"):
        load_weights(folder, averaged=name == "state.pt")
    forge(folder, name)
    with pytest.raises(errors.DamagedCheckpoint, match=f"{name} (was changed after it was|is not an) encrypted"):
        load_weights(folder, averaged=name == "state.pt")


def test_a_run_skips_a_damaged_checkpoint_and_moves_it_aside(tmp_path, key, forge):
    fit(tmp_path / "run", epochs=2, checkpoint_key=key)
    folder = checkpoint_of(tmp_path / "run")
    data = bytearray((folder / "state.pt").read_bytes())
    data[-1] ^= 1
    (folder / "state.pt").write_bytes(data)
    forge(folder, "state.pt")
    expected = fit(tmp_path / "plain", epochs=2)
    weights = fit(tmp_path / "run", epochs=2, checkpoint_key=key)
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    assert (tmp_path / "run" / "checkpoints" / f"damaged-{folder.name}").is_dir()


def test_files_cannot_be_swapped_cut_or_reordered(tmp_path, key, monkeypatch):
    monkeypatch.setattr(encryption, "PIECE_BYTES", 64)
    loaded = encryption.load_key(key)
    file = tmp_path / "state.pt"

    def write(name, content):
        with file.open("wb") as stream, encryption.encrypted(stream, name, loaded) as encrypted:
            encrypted.write(content[:10])
            encrypted.write(content[10:])
            assert encrypted.tell() == len(content)

    def read():
        return encryption.plain_source(file, loaded.describe()).getvalue()

    for size in (10, 63, 64, 65, 128, 129, 1000):
        content = secrets.token_bytes(size)
        write("state.pt", content)
        assert read() == content
    pieces = [file.read_bytes()[24 + at : 24 + at + 80] for at in range(0, 1000, 80)]
    good = file.read_bytes()
    for bad in (good[:-80], good[:-1], good[:24], good[:24] + pieces[1] + pieces[0] + good[184:], good + pieces[-1], b""):
        file.write_bytes(bad)
        with pytest.raises(errors.DamagedCheckpoint):
            read()
    write("model.safetensors", b"content of another file")
    with pytest.raises(errors.DamagedCheckpoint, match=r"state.pt was changed after it was encrypted"):
        read()


def test_encrypted_files_with_the_same_content_differ(tmp_path, key):
    loaded, contents = encryption.load_key(key), []
    for name in ("a", "b"):
        with (tmp_path / name).open("wb") as stream, encryption.encrypted(stream, "state.pt", loaded) as encrypted:
            encrypted.write(bytes(100))
        contents.append((tmp_path / name).read_bytes())
    assert contents[0][24:] != contents[1][24:]


@pytest.mark.parametrize("form", ["raw", "hex", "base64", "urlsafe"])
def test_a_key_is_read_from_a_file_or_the_environment_in_any_form(tmp_path, monkeypatch, form):
    import base64

    secret = b"\xfb" + secrets.token_bytes(30) + b"\xff"
    texts = {
        "raw": secret,
        "hex": secret.hex().encode(),
        "base64": base64.b64encode(secret) + b"\n",
        "urlsafe": base64.urlsafe_b64encode(secret),
    }
    (tmp_path / "key").write_bytes(texts[form])
    fingerprint = encryption.Key(secret).fingerprint
    assert encryption.load_key(tmp_path / "key").fingerprint == fingerprint
    if form != "raw":
        monkeypatch.setenv("MY_KEY", texts[form].decode())
        assert encryption.load_key("env:MY_KEY").fingerprint == fingerprint


@pytest.mark.parametrize("variable", [encryption.VARIABLE, encryption.FILE_VARIABLE])
def test_readers_get_the_key_from_the_environment(tmp_path, key, monkeypatch, variable):
    weights = fit(tmp_path / "run", checkpoint_key=key)
    encryption._known.clear()
    monkeypatch.setenv(variable, key.read_text().strip() if variable == encryption.VARIABLE else str(key))
    assert torch.equal(load_weights(tmp_path / "run")["weight"], weights["weight"])


def test_load_weights_takes_a_key(tmp_path, key):
    weights = fit(tmp_path / "run", checkpoint_key=key)
    encryption._known.clear()
    for path in (tmp_path / "run", checkpoint_of(tmp_path / "run") / "model.safetensors"):
        assert torch.equal(load_weights(path, key=key)["weight"], weights["weight"])


def test_tied_weights_stay_tied(tmp_path, key):
    store = CheckpointStore(tmp_path / "run", key=encryption.load_key(key))
    store.open("never", {})
    shared = torch.randn(3)
    path = store.save({"parts": {"model": {"a": shared, "b": shared, "c": torch.ones(2)}}}, step=1, tags=["x"])
    store.close()
    loaded = load_weights(path)
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr()
    assert sorted(loaded) == ["a", "b", "c"]


@pytest.mark.parametrize("secret", ["ab" * 32, b"x" * 32, "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="])
def test_a_key_in_the_code_raises_without_being_printed(tmp_path, secret):
    with pytest.raises(errors.BadArgument, match=r"must be a file or 'env:NAME', not the key itself") as caught:
        Loop([ModelSaver()], workdir=tmp_path, checkpoint_key=secret)
    assert str(secret) not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "source", "text"),
    [
        (None, "none.key", r"none.key cannot be read: No such file or directory.\n  create    a key with openssl rand -hex 32"),
        (b"short", "bad.key", r"bad.key does not contain a key: it must be 32 random bytes"),
        (None, "env:NOT_SET", r"the environment variable NOT_SET is not set"),
    ],
)
def test_a_key_that_cannot_be_read_raises_before_the_run(tmp_path, content, source, text):
    if content is not None:
        (tmp_path / source).write_bytes(content)
    source = source if source.startswith("env:") else tmp_path / source
    with pytest.raises(errors.BadArgument, match=text):
        Loop([ModelSaver()], workdir=tmp_path / "run", checkpoint_key=source)


def test_a_key_with_a_custom_store_raises(tmp_path, key):
    with pytest.raises(errors.BadArgument, match="checkpoint_key has no effect on the store passed as store="):
        Loop(store=CheckpointStore(tmp_path), checkpoint_key=key)


def test_a_loop_without_torch_objects_resumes_with_a_key(tmp_path, key):
    with Loop([ModelSaver()], workdir=tmp_path / "run", extra_callbacks=[], monitors=[], checkpoint_key=key) as run:
        for _ in run.epochs(2):
            pass
    files = [file for file in checkpoint_of(tmp_path / "run").iterdir() if file.name != "manifest.json"]
    assert {file.read_bytes()[:8] for file in files} == {encryption.MAGIC}
    encryption._known.clear()
    with Loop([ModelSaver()], workdir=tmp_path / "run", extra_callbacks=[], monitors=[], checkpoint_key=key) as run:
        assert run.epoch == 2


def test_a_run_can_start_to_encrypt_and_keeps_its_plain_checkpoints(tmp_path, key):
    fit(tmp_path / "run")
    fit(tmp_path / "run", epochs=2, checkpoint_key=key)
    assert verify(tmp_path / "run").ok
    plain = load_weights(min((tmp_path / "run" / "checkpoints").glob("step-*")))
    assert sorted(plain) == ["bias", "weight"]


@pytest.mark.parametrize("made", [Loop, lambda **options: Runner(torch.nn.Linear(2, 1), **options)])
def test_a_key_without_a_workdir_raises(made, key):
    with pytest.raises(errors.BadArgument, match=r"^checkpoint_key needs a workdir: .*\n  give      workdir="):
        made(checkpoint_key=key)


def test_without_the_package_the_error_names_the_extra(tmp_path, key, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(ImportError, match=r"pip install 'hookpoint\[crypto\]'"):
        Loop([ModelSaver()], workdir=tmp_path, checkpoint_key=key)


def test_a_key_cannot_be_pickled(key):
    import pickle

    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(encryption.load_key(key))
