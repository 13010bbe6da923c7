"""One stream: the same rows however many workers make them, wherever it is entered."""

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
    import os
    import shutil
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


main(same_for_any_number_of_workers, transport_does_not_enter, entered_at_a_later_step,
     index_is_only_a_cache, the_last_step_is_complete_and_then_it_ends)
