"""The process of one tensor-parallel rank that is told what to compute."""

import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from blendrun.cost.tensor_shards import Shard
from blendrun.engine.decoder_config import DecoderConfig
from blendrun.engine.devices import choose_device
from blendrun.engine.follower import follow
from blendrun.engine.loaded_model import checked_compute, load_decoder
from blendrun.engine.settings import ExecuteSettings
from blendrun.errors import BlendrunError
from blendrun.launch.child import end_with
from blendrun.launch.rendezvous import Meeting, join

STARTED, READY = "started", "ready"  # what a rank says; anything else is what went wrong


@dataclass(frozen=True, slots=True)
class RankJob:
    shard: Shard
    meeting: Meeting
    threads: int
    folder: Path  # the checkpoint
    config: DecoderConfig  # of the whole model
    settings: ExecuteSettings
    place: int  # see `choose_device`


def run_rank(job: RankJob, first: Connection) -> None:
    """Load this rank's part and compute what the first rank tells, until it hangs up."""
    end_with(first)
    torch.set_num_threads(job.threads)
    try:
        first.send(STARTED)
        group = join(job.shard, job.meeting, choose_device(job.settings.device, job.place))
        compute = checked_compute(job.config, job.settings, job.place)
        decoder = load_decoder(job.folder, job.config, job.settings, compute, group)
        first.send(READY)
        follow(decoder, compute)
    except BlendrunError as error:
        first.send(error.message)
        sys.exit(1)
    except Exception as error:
        first.send(f"{type(error).__name__}: {error}")
        sys.exit(1)
