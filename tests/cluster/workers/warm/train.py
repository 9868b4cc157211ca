"""One of the trainings, in one of the ways in which people start them.

usage: train.py FOLDER [hide] [thread] [spawn|fork] [resnet|huggingface|lightning|accelerate]
"""

import os
import sys

folder, words = sys.argv[1], sys.argv[2:]
if "hide" in words:
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"

import trainings  # noqa: E402

if "thread" in words:
    import thread_test  # noqa: F401


def main():
    if "hide" in words:
        import torch
        print("GPUs", os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), flush=True)
    for library in ("huggingface", "lightning", "accelerate"):
        if library in words:
            getattr(trainings, f"train_{library}")(folder)
            return
    loading = {}
    for method in ("spawn", "fork"):
        if method in words:
            loading = {"num_workers": 2, "multiprocessing_context": method}
    network = trainings.residual_network if "resnet" in words else trainings.small_network
    trainings.train(folder, network, **loading)


if __name__ == "__main__":
    main()
