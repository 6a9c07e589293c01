"""DDP and FSDP2: rotational AdamW or Muon, watched, with checkpoints that any number of processes goes on from.

torchrun --standalone --nproc-per-node 2 examples/distributed.py --mode fsdp --optimizer muon --output out
python examples/distributed.py --optimizer muon --output out --resume --until 30     # one process goes on
equipoise report out/run -o report.html     # what was measured
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.lab.models.gpt import Gpt

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--mode", choices=("ddp", "fsdp"), default="ddp", help="of more than one process")
parser.add_argument("--optimizer", choices=("rotational_adamw", "muon"), default="rotational_adamw")
parser.add_argument("--output", type=Path, required=True)
parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
parser.add_argument("--until", type=int, default=20)
args = parser.parse_args()
alone = {} if dist.is_torchelastic_launched() else {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore
dist.init_process_group("gloo", **alone)
torch.manual_seed(0)  # the same weights on all processes
rank, ranks = dist.get_rank(), dist.get_world_size()
model = net = Gpt(tokens=64, length=32, depth=2, width=32, heads=2)
if ranks > 1 and args.mode == "ddp":
    model = DistributedDataParallel(net)
for part in (*net.layers, net) if ranks > 1 and args.mode == "fsdp" else ():
    fully_shard(part)
kind = eq.Muon if args.optimizer == "muon" else eq.RotationalAdamW
optimizer = kind(eq.param_groups(net), lr=0.01, weight_decay=0.1)
scheduler = eq.schedules.Scheduler(optimizer, lr=eq.schedules.warmup_cosine(40, warmup=4), relative=True)
if args.resume:
    newest = max(args.output.glob("step-*/.metadata")).parent  # written last: where it is, all is
    averages = get_optimizer_state_dict(net, optimizer)
    dcp.load({"model": net, "optimizer": averages, "scheduler": scheduler}, checkpoint_id=newest)  # type: ignore
    set_optimizer_state_dict(net, optimizer, averages)

with eq.watch(model, optimizer, args.output / "run", every=1, resume=scheduler.last_epoch or False) as watch:
    for step in range(scheduler.last_epoch + 1, args.until + 1):  # a batch is a function of its step
        x = torch.randint(64, (12, 33), generator=torch.Generator().manual_seed(step)).sort(1).values[rank::ranks]
        loss = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        dist.all_reduce(loss := loss.detach() / ranks)
        watch.log(loss=loss)
        if step % 5 == 0:
            saved = {"model": net, "optimizer": get_optimizer_state_dict(net, optimizer), "scheduler": scheduler}
            dcp.save(saved, checkpoint_id=args.output / f"step-{step:06}")  # type: ignore
dist.destroy_process_group()
