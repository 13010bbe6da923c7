"""One stream: the same rows however many workers make them, wherever it is entered."""

import os
import shutil

from prepd_flow import Folder, check, digest, main, run


def same_for_any_number_of_workers():
    with Folder() as f:
        digests = {w: digest(f.config, "--steps", "12", "--prepd.workers", str(w))
                   for w in (1, 2, 7)}
        check(len(set(digests.values())) == 1, f"digests differ: {digests}")
        other = digest(f.config, "--steps", "12", "--training.seed", "7")
        check(other not in digests.values(), "another seed gives the same stream")


def transport_does_not_enter():
    with Folder() as f:
        plain = digest(f.config, "--steps", "4")
        packed = digest(f.config, "--steps", "4", "--prepd.image_filter", "plane",
                        "--prepd.image_codec", "zstd")
        check(plain == packed, "filter and codec change the digest")


def entered_at_a_later_step():
    with Folder() as f:
        late = digest(f.config, "--steps", "3", "--from", "5")
        again = digest(f.config, "--steps", "3", "--from", "5", "--prepd.workers", "3")
        first = digest(f.config, "--steps", "3")
        check(late == again and late != first, "start at a later step is not exact")


def index_is_only_a_cache():
    with Folder() as f:
        fresh = digest(f.config, "--steps", "4")
        cache = f.file("data/.tessera")
        check(os.listdir(cache), "no index was kept")
        check(digest(f.config, "--steps", "4") == fresh, "the cached index changes the stream")
        for name in os.listdir(cache):  # a damaged one is built again, not believed
            with open(os.path.join(cache, name), "r+b") as x:
                x.seek(200)
                x.write(b"\xff" * 16)
        check(digest(f.config, "--steps", "4") == fresh, "a damaged index was believed")
        shutil.rmtree(cache)
        check(digest(f.config, "--steps", "4") == fresh, "a new index changes the stream")


def the_last_step_is_complete_and_then_it_ends():
    with Folder() as f:
        out = run("record", "-c", f.config, "--steps", "1000", "--out", f.file("r.rec"),
                  "--training.epochs", "1")
        rows = int(out.split(":")[1].split()[0])
        check(rows > 0 and rows % 4 == 0, f"{rows} rows are no whole steps of 4")


def commands_need_only_the_data_section():
    """smoke.yaml with its data overridden: no eval split, another length, no daemon's endpoint."""
    source = os.environ.get("TESSERA_SOURCE", ".")
    with Folder() as f:
        here = ["-c", os.path.join(source, "configs/smoke.yaml"), "--data.path", f.file("data"),
                "--model.path", f.file("data/model"), "--training.seq_len", "128",
                "--training.global_batch_size", "8", "--eval.split", "absent"]
        check(run("check", *here).strip().endswith(" 0 bad"), "check")
        check("rows" in run("plan", *here), "plan")
        check(run("digest", *here, "--steps", "2"), "digest")
        one = f.file("one.safetensors")
        run("sample", *here, "--index", "0", "--out", one)
        check(os.path.getsize(one) > 0, "sample wrote nothing")
        run("record", *here, "--steps", "1", "--out", f.file("r.rec"))
        said = run("sample", *here, "--index", "1000000", "--out", f.file("no"), code=64)
        check("past the last sample" in said and not os.path.exists(f.file("no")), said)
        talk = run("plan", *here, "--data.group", "conversation")
        check(talk != run("plan", *here), "conversation changes nothing")
        check(run("digest", *here, "--steps", "2", "--data.answer", "drawn"), "drawn answers")


main(same_for_any_number_of_workers, transport_does_not_enter, entered_at_a_later_step,
     index_is_only_a_cache, commands_need_only_the_data_section, the_last_step_is_complete_and_then_it_ends)
