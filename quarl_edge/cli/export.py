"""`quarl-edge export`: any trained policy as one verified TFLite file."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import typer

from quarl_device.files import check_target
from quarl_edge.cli import export_options as given
from quarl_edge.cli import source_options as said
from quarl_edge.cli.early import look_at_calibration, look_at_source
from quarl_edge.cli.export_extras import make_extras
from quarl_edge.cli.export_options import Io, Runtime, Scheme
from quarl_edge.cli.export_result import write_result_json, write_result_text
from quarl_edge.cli.export_wishes import ExportWishes, check_wishes, checkpoint_of
from quarl_edge.cli.export_work import load_library, make_file
from quarl_edge.cli.output import Format, write_error
from quarl_edge.cli.source_options import SourceWishes, Squash
from quarl_edge.extras import require_learner
from quarl_edge.progress import make_progress
from quarl_edge.runs import DEFAULT_ROOT


def export(
    model: given.Target,
    source: given.Source = None,
    scheme: given.SchemeOption = Scheme.INT8,
    per_channel: given.PerChannel = False,
    weight_bits: given.WeightBits = None,
    activation_bits: given.ActivationBits = None,
    head_output: given.HeadOutput = None,
    io: given.IoOption = Io.FLOAT32,
    runtime: given.RuntimeOption = Runtime.LITERT,
    env: said.Environment = "",
    wrappers: said.Wrappers = None,
    calibrate: given.Calibrate = "",
    range_rule: given.RangeOption = None,
    percentile: given.Percentile = None,
    steps: given.Steps = None,
    seed: given.Seed = None,
    episodes: given.Episodes = 50,
    keep_float: given.KeepFloat = None,
    vecnormalize: said.VecNormalize = None,
    head: said.Head = None,
    inputs: said.Inputs = None,
    outputs: said.Outputs = None,
    signature: said.Signature = "",
    stack: said.Stack = None,
    stack_fill: said.StackFill = "",
    action_units: said.Units = None,
    squash: said.SquashOption = Squash.NONE,
    center_q: given.CenterQ = False,
    report_into: given.ReportInto = None,
    edge_tpu: given.EdgeTpu = False,
    force: given.Force = False,
    runs: given.Runs = DEFAULT_ROOT,
    output: given.Output = Format.TEXT,
) -> None:
    """Write a trained policy as one TFLite file with its contract and golden vectors inside.

    Without --from it is the latest run's, as int8. The file is checked before it is written (codes Q01 to Q13), read
    back, and run in the TFLite runtime before the command ends well. Where its environment is known, --episodes of
    it decide: the file must keep 95 % of what the float policy returns more than
    random actions.

    Examples:
      quarl-edge export model.tflite
      quarl-edge export model.tflite --from ppo.zip --env CartPole-v1 --vecnormalize stats.pkl
      quarl-edge export model.tflite --from dqn.zip --env CartPole-v1 --head-output float32
      quarl-edge export model.tflite --from actor.keras --env Pendulum-v1 --calibrate recorded.npz --io int8
      quarl-edge export model.tflite --from q.keras --env CartPole-v1 --stack 4 --stack-fill zeros
      quarl-edge export model.tflite --from actor.h5 --input camera=image --input joints=state --output action=out
    """
    source_wishes = SourceWishes.read(
        env=env, wrappers=wrappers, head=head, inputs=inputs, outputs=outputs, signature=signature, stack=stack,
        stack_fill=stack_fill, action_units=action_units, squash=squash, vecnormalize=vecnormalize,
    )  # fmt: skip
    check_target(model)
    checkpoint = checkpoint_of(source, runs)
    wishes = ExportWishes(
        model=model, place=checkpoint or source or Path(), checkpoint=checkpoint, source=source_wishes, scheme=scheme,
        per_channel=per_channel, weight_bits=weight_bits, activation_bits=activation_bits, head_output=head_output,
        io=io, runtime=runtime, calibrate=calibrate, range_rule=range_rule, percentile=percentile, steps=steps,
        seed=seed, episodes=episodes, keep_float=frozenset(keep_float or ()), center_q=center_q, force=force,
    )  # fmt: skip
    check_wishes(wishes, source=source, report_into=report_into)
    require_learner("export")
    look_at_source(wishes.place, source_wishes)
    look_at_calibration(calibrate)
    wishes.check_scheme()
    with closing(make_progress()) as progress:
        progress.note(f"reading {source or checkpoint}")
        load_library()
        report = make_file(wishes, progress)
        extras = make_extras(report, report_into, edge_tpu=edge_tpu)
    if output is Format.JSON:
        write_result_json(report, str(wishes.place), extras)
    else:
        write_result_text(report, str(wishes.place), extras, env=wishes.source.env_id)
    failed = [extra.error for extra in extras.values() if extra.error is not None]
    for error in failed:
        write_error(error, Format.TEXT)
    if failed:
        raise typer.Exit(failed[0].code)
