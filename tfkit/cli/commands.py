"""Commands of this room: module within tfkit.cli, group, and line in `tfkit --help`."""

COMMANDS = {
    "recipes": ("recipes", "Recipes", "List the shipped recipes."),
    "check": ("check", "Recipes", "Check recipes and report all faults."),
    "show": ("show", "Recipes", "Show an architecture: parts, weights and costs."),
    "explain": ("explain", "Recipes", "Show where a value comes from, and what it replaced."),
    "diff": ("diff", "Recipes", "Compare two recipes or runs."),
    "train": ("train", "Training", "Train the model of a recipe into a run folder."),
    "plan": (
        "plan",
        "Training",
        "Show the memory that training takes on each device, and the largest batch that fits.",
    ),
    "evaluate": ("evaluate", "Training", "Compute the metrics of a run on its data."),
    "runs": ("runs", "Training", "List runs, sorted and filtered."),
    "generate": ("generate", "Using", "Generate text with a run."),
    "predict": ("predict", "Using", "Print predictions of a run: labels, tags, answers, tokens for masks."),
    "embed": ("embed", "Using", "Print the vectors of texts."),
    "look": ("look", "Using", "Show the attention weights of a run's heads for a text."),
    "parts": ("parts", "Extending", "List the registered parts, or describe one."),
    "schema": ("schema", "Extending", "Print the JSON Schema of the recipe language, for editors."),
}
