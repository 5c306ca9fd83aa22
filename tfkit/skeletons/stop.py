"""my_part: a custom stop rule, which decides when a text is complete."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.generation.stop import StopRule, WrittenRow


@tfkit.register("stop", "my_part")
class MyPart(StopRule):
    """Ends a text after a number of sentences."""

    # Options of the part, as written in a recipe: {type: my_part, sentences: 3}. Add your own here.
    class Config(StopRule.Config):
        sentences: int = Field(1, ge=1, description="number of sentences, each ending in . ! or ?")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        # Change this. It is called after each token; `row.text` is the generated text, and `row.ids` are its tokens.
        return sum(row.text.count(mark) for mark in ".!?") >= self.config.sentences
