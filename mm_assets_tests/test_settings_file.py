"""The settings file, and variables over it."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import pytest

from mm_assets.cli.graph import settings_text
from mm_assets.formats.raw_shards import RawLocations
from mm_assets.settings import Settings
from mm_assets.settings_file import FILE, SettingsFileError, given_settings
from mm_assets_tests.cli.commands import fine, only_line, run, run_process
from mm_assets_tests.formats.raw_tars import make_tar
from mm_assets_tests.test_plugins import FILTER


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without settings, and an environment without any."""
    for name in [name for name in os.environ if name.startswith("MM_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str) -> None:
    Path(FILE).write_text(text, encoding="utf-8")


def test_variables_come_before_the_file_and_that_before_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    write('workers = 3\nmax_loss = 0.25\nstorage = "of the file"\ntexts_field = "words"\n')
    monkeypatch.setenv("MM_STORAGE", "of the environment")
    monkeypatch.setenv("MM_WORKERS", "")
    settings = Settings.load()
    # An empty variable takes a value of the file back.
    assert (settings.storage, settings.workers, settings.max_loss) == ("of the environment", 0, 0.25)
    assert (settings.texts_field, settings.images_field) == ("words", Settings.images_field)
    assert Settings.load({"MM_WORKERS": "2"}).max_loss == 0.5, "given variables are all there is"


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("workers = 1_000", "workers", 1000),
        ("workers = 0x10", "workers", 16),
        ("max_loss = 1", "max_loss", 1.0),
        ("decode_fraction = 1e-3", "decode_fraction", 0.001),
        ("min_aspect_ratio = 1.5", "min_aspect_ratio", 1.5),
        ('max_loss = "0.25"', "max_loss", 0.25),
        ('max_member_bytes = "64MiB"', "max_member_bytes", "64MiB"),
        ("max_member_bytes = 1048576", "max_member_bytes", "1048576"),
        ('per_image_fields = ["a", "b c"]', "per_image_fields", ("a", "b c")),
        ('per_image_fields = "a, b"', "per_image_fields", ("a", "b")),
        ("image_extensions = []", "image_extensions", Settings.image_extensions),
        ('sample_id_field = ""', "sample_id_field", None),
        ('sample_id_field = "größe"', "sample_id_field", "größe"),
        ('refresh_cron = "0 2 * * *"', "refresh_cron", "0 2 * * *"),
        ('storage = "~/x"', "storage", str(Path.home() / "x")),
    ],
)
def test_values_of_all_types(line: str, name: str, value: object) -> None:
    write(line)
    assert getattr(Settings.load(), name) == value


def test_a_file_of_windows() -> None:
    Path(FILE).write_bytes(b'\xef\xbb\xbfworkers = 3\r\ntexts_field = "a"\r\n')
    assert (Settings.load().workers, Settings.load().texts_field) == (3, "a")


@pytest.mark.parametrize("name", ["one", "with space", "it's", "two  spaces", "a,b", "c{0..1}*"])
def test_a_list_of_locations_keeps_each_whole(name: str, folder: Path) -> None:
    paths = [folder / "other.tar", folder / name / "s.tar"]
    for path in paths:
        make_tar(path, [])
    locations = [str(folder / "other.tar"), str(folder / name / "*.tar")]
    if name.startswith("c{"):
        locations[1] = str(folder / "c*" / "s.tar")
    write(f"raw_shards = [{', '.join(map(json.dumps, locations))}]")
    found = RawLocations(Settings.load().raw_shards).shards()
    assert sorted(shard.uri for shard in found.values()) == sorted(map(str, paths))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("storge = 'x'", "mm_assets.toml: storge: no such setting; the nearest is storage"),
        ("zzzz = 1", "mm_assets.toml: zzzz: no such setting"),
        ("workers = 1\nworkers = 2", "mm_assets.toml: workers is given twice, the second time in line 2"),
        ("max_image_pixels = 0", "mm_assets.toml: max_image_pixels must be more than 0, not 0"),
        ("max_aspect_ratio = 0", "mm_assets.toml: max_aspect_ratio must be more than 0, not 0"),
        (
            "alerts = 7",
            "mm_assets.toml: alerts must be Apprise URLs, such as json://host:8080/path; this is none",
        ),
        (
            "alerts = ['json://a', 's3cret']",
            "mm_assets.toml: alerts must be Apprise URLs, such as json://host:8080/path; "
            "number 2 of them is none",
        ),
        (
            "refresh_cron = '0 0 30 2 *'",
            "mm_assets.toml: refresh_cron must be a cron expression of five fields, of a time that "
            "comes, such as "
            "'0 2 * * *', not '0 0 30 2 *'",
        ),
        (
            "[graph]\nworkers = 1",
            "mm_assets.toml: graph must be text, a number or a list of them, not a table",
        ),
        (
            "workers = true",
            "mm_assets.toml: workers must be text, a number or a list of them, not true or fal",
        ),
        (
            "workers = 2020-01-01",
            "mm_assets.toml: workers must be text, a number or a list of them, not 2020",
        ),
        (
            "plugins = [['a']]",
            "mm_assets.toml: plugins must be text, a number or a list of them, not a list in",
        ),
        ("scores = 'sharpnes'", "mm_assets.toml: scores: there is no score 'sharpnes' to be measured; "),
        ("keep_images = 'width >'", "mm_assets.toml: keep_images: 'width >': syntax error"),
        ("keep_images = 5", "mm_assets.toml: keep_images: '5': it is neither true nor false"),
        ("filter_actions = ['word=flag']", "mm_assets.toml: filter_actions: 'word=flag': there is no filter"),
        ("languages = ['xx']", "mm_assets.toml: languages: 'xx' is no ISO 639-1 code of a language that"),
        ("STORAGE = 'x'", "mm_assets.toml: STORAGE: settings are written in lower case: storage"),
        ("MM_STORAGE = 'x'", "mm_assets.toml: MM_STORAGE: settings are written without MM_ and in"),
        ("mm_storage = 'x'", "mm_assets.toml: mm_storage: settings are written without MM_ and in lower"),
        ("workers = 'many'", "mm_assets.toml: workers must be a whole number, not 'many'"),
        ("workers = 1.5", "mm_assets.toml: workers must be a whole number, not '1.5'"),
        ("max_loss = 2", "mm_assets.toml: max_loss must be at most 1, not 2"),
        ("max_loss = nan", "mm_assets.toml: max_loss must be a number, not 'nan'"),
        ("refresh_cron = 'daily'", "mm_assets.toml: refresh_cron must be a cron expression"),
        ("max_member_bytes = 'big'", "mm_assets.toml: max_member_bytes: not a size in bytes: 'big'"),
        ("per_text_fields = ['a,b']", "mm_assets.toml: per_text_fields: 'a,b' has a comma, which separates"),
        (
            "storage = demo",
            "mm_assets.toml: Invalid value (at line 1, column 11); write text in quotation marks",
        ),
        (
            "[storage.'s3://bucket']\nprofile_name = 'a'",
            "mm_assets.toml: storage is the folder of all outputs; options of an object store go into "
            '[stores."s3://bucket"]',
        ),
        ("stores = 's3://bucket'", 'mm_assets.toml: stores has tables, as [stores."s3://bucket"]'),
        (
            "[stores.bucket]\nprofile_name = 'a'",
            'mm_assets.toml: [stores."bucket"]: not the URL of a bucket or a part of one, as [stores."s3://bu',
        ),
        (
            "[stores.'simplecache::s3://bucket']\nprofile_name = 'a'",
            'mm_assets.toml: [stores."simplecache::s3://bucket"]: not the URL of a bucket',
        ),
        (
            "[stores.'s3://bucket']\nprofile = 'a'",
            'mm_assets.toml: [stores."s3://bucket"]: profile: no such option; there are profile_name, aws_',
        ),
        (
            "[stores.'s3://bucket']\nendpoint_url = 7",
            'mm_assets.toml: [stores."s3://bucket"]: endpoint_url must be text in quotation marks',
        ),
        (
            "[stores.'s3://bucket']\naws_access_key_id = 'a'",
            'mm_assets.toml: [stores."s3://bucket"]: aws_access_key_id and aws_secret_access_key belong tog',
        ),
        (
            "[stores.'s3://bucket']\n[stores.'s3a://bucket/']",
            "mm_assets.toml: s3://bucket and s3a://bucket/ are one location, and have two tables",
        ),
        (
            "[stores.'s3://bucket']\nregion_name = \"\\u0000\"",
            'mm_assets.toml: [stores."s3://bucket"]: region_name must have no null characters',
        ),
        ("[stores]\n's3://bucket' = 1", 'mm_assets.toml: [stores."s3://bucket"] must be a table'),
        ('storage = "a\\u0000b"', "mm_assets.toml: storage must be UTF-8 text without null characters"),
        ('plugins = ["a\\u0000b"]', "mm_assets.toml: plugins: 'a\\x00b' is not the name of a module"),
        ("\nworkers = " + "9" * 4301, "mm_assets.toml: a number in line 2 has too many digits"),
        ("workers = 0x" + "f" * 5000, "mm_assets.toml: workers: a number has too many digits"),
        ("workers = " + "9" * 99, "mm_assets.toml: workers must be a whole number of at most 18 digits"),
        (f"workers = {'[' * 5000}{']' * 5000}", "mm_assets.toml: lists or tables are nested too deep"),
        (f"workers = {'{a = ' * 2000}1{'}' * 2000}", "mm_assets.toml: lists or tables are nested too deep"),
        (
            f"workers{'.a' * 3000} = 1",
            "mm_assets.toml: workers must be text, a number or a list of them, not",
        ),
        (f"[{'stores.' * 3000}a]\nb = 1", 'mm_assets.toml: [stores."stores"]: not the URL of a bucket'),
        (
            "min_aspect_ratio = 2\nmax_aspect_ratio = 1",
            "mm_assets.toml: min_aspect_ratio is 2, more than mm_assets.toml: max_aspect_ratio, which is 1",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_of_every_command(text: str, message: str) -> None:
    write(text)
    with pytest.raises(ValueError, match=re.escape(message)):
        Settings.load()
    assert only_line(run("inspect", "x")).startswith(message)


def test_a_bound_of_the_file_and_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    write("min_image_side = 8")
    monkeypatch.setenv("MM_MAX_IMAGE_SIDE", "4")
    with pytest.raises(
        ValueError, match="mm_assets.toml: min_image_side is 8, more than MM_MAX_IMAGE_SIDE, which is 4"
    ):
        Settings.load()
    monkeypatch.setenv("MM_MIN_IMAGE_SIDE", "2")
    assert Settings.load().min_image_side == 2


def test_a_file_that_cannot_be_read(folder: Path) -> None:
    Path(FILE).write_bytes(b'storage = "\xff"')
    with pytest.raises(SettingsFileError, match="mm_assets.toml: not UTF-8"):
        given_settings()
    Path(FILE).unlink()
    Path(FILE).mkdir()
    assert only_line(run("inspect", "x")) == "mm_assets.toml: a folder, not a file"


def test_plugins_that_the_file_names_have_settings_in_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "plugin_of_the_file.py").write_text(FILTER)
    monkeypatch.syspath_prepend(str(folder))
    write('plugins = ["plugin_of_the_file"]\nmin_file_size = 7')
    assert Settings.load().filter_values()["min_file_size"] == 7
    write("min_file_size = 7")
    with pytest.raises(ValueError, match="mm_assets.toml: min_file_size: no such setting"):
        Settings.load()
    write('plugins = ["of_no_file"]')
    line = "mm_assets.toml: plugins: module 'of_no_file' cannot be imported"
    assert only_line(run("inspect", "x")).startswith(line)


def test_the_file_of_init_has_every_setting_with_its_default() -> None:
    fine(run("init"))
    text = Path(FILE).read_text()
    assert text == settings_text()
    assert Settings.load() == Settings()
    names = {setting.name for setting in fields(Settings)}
    set_ = re.sub(r"^# (\w+ = |\[stores)", r"\1", text, flags=re.MULTILINE)
    write(set_)
    assert {name.removeprefix("MM_").lower() for name in given_settings()} == names
    assert given_settings().stores == {"s3://bucket": {"profile_name": "curation"}}
    assert Settings.load() == Settings()
    headings = re.findall("# --- (.*) ---", text)
    assert headings == [
        "data",
        "layout of the raw documents",
        "limits and checks",
        "training set",
        "operation",
        "filters",
        "object stores",
    ]
    assert "# what becomes of an item that cannot be had (error | warn | drop_row | drop_sample)" in text


def test_init_leaves_a_file_as_it_is(folder: Path) -> None:
    write("workers = 3")
    assert only_line(run("init")) == f"{folder / FILE}: there is one, and it stays as it is"
    assert Path(FILE).read_text() == "workers = 3"


def test_owners_may_be_a_list() -> None:
    write('owners = ["team:data", "ada@example.org"]')
    assert Settings.load().owners == ("team:data", "ada@example.org")


@pytest.mark.parametrize(
    ("make", "words"), [(os.mkfifo, "a named pipe"), (lambda path: os.symlink("/dev/zero", path), "a device")]
)
def test_a_special_file_is_refused_and_never_read(make: Callable[[str], None], words: str) -> None:
    make(FILE)
    done = run_process("inspect", "x", cwd=os.getcwd(), timeout=60)
    assert only_line(done) == f"mm_assets.toml: {words}, not a regular file"
