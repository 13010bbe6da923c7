"""trainer plan: what it says of memory, for which model and for which device."""

import re

from prepd_flow import check, main
from train_flow import trainer


def parameters(*words):
    return int(re.search(r"^\S+: (\d+) parameters in ", trainer("plan", *words), re.M)[1])


def model_layers_are_honoured():
    """A model that is cut for benches is planned as train would open it, and the same cut is refused."""
    debug = ["--model.path", "debug"]
    check(parameters(*debug, "--model.layers", "3") < parameters(*debug), "as many parameters as with all layers")
    check(parameters(*debug, "--model.layers", "4") == parameters(*debug), "all four layers are the whole model")
    said = trainer("plan", *debug, "--model.layers", "1", code=78)
    check("model.layers is 1; debug can be cut to 3 to 4" in said, said)


main(model_layers_are_honoured)
