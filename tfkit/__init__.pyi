from tfkit.api import build as build
from tfkit.api import part as part
from tfkit.api import parts as parts
from tfkit.core.component import Component as Component
from tfkit.core.component import Config as Config
from tfkit.core.component import Shape as Shape
from tfkit.core.context import Context as Context
from tfkit.core.errors import DataError as DataError
from tfkit.core.errors import RecipeError as RecipeError
from tfkit.core.errors import RunError as RunError
from tfkit.core.errors import TfkitError as TfkitError
from tfkit.core.errors import UsageError as UsageError
from tfkit.core.options import Slot as Slot
from tfkit.core.registry import register as register
from tfkit.interop.hub import push as push
from tfkit.interop.huggingface.pretrained import as_pretrained as as_pretrained
from tfkit.models.alone import context as context
from tfkit.plain.code import code as code
from tfkit.recipe.load import Recipe as Recipe
from tfkit.recipe.load import load_recipe as load_recipe
from tfkit.run import Run as Run
from tfkit.run import evaluate as evaluate
from tfkit.run import load_run as load_run
from tfkit.run import save as save
from tfkit.run import train as train
from tfkit.studies.study import study as study

__version__: str
