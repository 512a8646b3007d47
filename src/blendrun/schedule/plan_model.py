"""The model as planning needs it: a shape, perhaps a tokenizer, and how the plan names it."""

from dataclasses import dataclass
from pathlib import Path

from blendrun.cost.model_shape import ModelShape
from blendrun.data.model_files import resolve_model
from blendrun.data.tokenizer import PromptTokenizer
from blendrun.errors import InputError
from blendrun.schedule.plan_record import PlanModel
from blendrun.schedule.settings import PlanSettings


@dataclass(frozen=True, slots=True)
class PlannedModel:
    shape: ModelShape
    tokenizer: PromptTokenizer | None  # None: only token-id prompts
    record: PlanModel
    notes: tuple[str, ...] = ()  # on what the shape takes for granted


def load_model(settings: PlanSettings) -> PlannedModel:
    """A checkpoint's config and tokenizer, or a bare shape from a TOML file.

    Raises:
        InputError: there is no such model, or it is not supported.
    """
    spec = settings.model
    if spec.endswith(".toml"):
        shape = ModelShape.load(spec)
        tokenizer = None
        if settings.tokenizer is not None:
            files = resolve_model(settings.tokenizer, weights=False, engine=settings.engine)
            tokenizer = PromptTokenizer.from_folder(files.folder)
        return PlannedModel(shape, tokenizer, PlanModel(spec, shape.name, "", ()))
    if settings.tokenizer is not None:
        raise InputError(
            "--tokenizer goes with a model shape (.toml); a checkpoint brings its own",
            "leave --tokenizer out",
        )
    files = resolve_model(spec, weights=False, engine=settings.engine)
    local = Path(spec).expanduser()
    record = PlanModel(
        str(local.resolve()) if local.exists() else spec,
        local.stem if local.suffix == ".gguf" else local.name,
        files.fingerprint,
        files.eos_token_ids,
    )
    shape = ModelShape.from_hf_config(files.config, record.name)
    return PlannedModel(shape, PromptTokenizer.from_folder(files.folder), record, files.notes)
