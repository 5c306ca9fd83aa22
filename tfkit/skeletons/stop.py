"""my_part: a custom stop rule, which decides when a text is complete."""

from __future__ import annotations

from pydantic import Field

import tfkit
from tfkit.generation.stop import StopRule, WrittenRow


@tfkit.register("stop", "my_part")
class MyPart(StopRule):
    """Ends after so many sentences."""

    # The options of the part, as a recipe writes them: {type: my_part, sentences: 3}. Add yours here.
    class Config(StopRule.Config):
        sentences: int = Field(1, ge=1, description="number of sentences, each ending in . ! or ?")

    config: Config

    def done(self, row: WrittenRow) -> bool:
        # Change this: asked after each token. `row.text` is what was written, `row.ids` the same as tokens.
        return sum(row.text.count(mark) for mark in ".!?") >= self.config.sentences
