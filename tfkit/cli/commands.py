"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {
    "recipes": ("recipes", "Recipes", "List the shipped recipes."),
    "check": ("recipes", "Recipes", "Check recipes and report all faults."),
    "show": ("recipes", "Recipes", "Show an architecture: parts, weights and costs."),
    "explain": ("recipes", "Recipes", "Show where a value comes from, and what it replaced."),
    "diff": ("comparing", "Recipes", "Compare two recipes or runs."),
    "train": ("training", "Training", "Train a recipe and save the result as a run folder."),
    "plan": (
        "training",
        "Training",
        "Show the memory that training takes on each device, and the largest batch that fits.",
    ),
    "evaluate": ("training", "Training", "Compute the metrics of a run on its data."),
    "runs": ("training", "Training", "List runs, sorted and filtered."),
    "generate": ("writing", "Using", "Generate text with a run."),
    "predict": ("reading", "Using", "Print predictions of a run: labels, tags, answers, tokens for masks."),
    "embed": ("reading", "Using", "Print the vectors of texts."),
    "look": ("comparing", "Using", "Show the attention weights of a run's heads for a text."),
    "parts": ("parts", "Extending", "List the registered parts, or describe one."),
    "completion": ("completion", "Extending", "Print the script that lets a shell complete commands and recipes."),
    "schema": ("recipes", "Extending", "Print the JSON Schema of the recipe language, for editors."),
}
