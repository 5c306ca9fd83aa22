"""Parts to begin from: `tfkit new --part` writes them under a name of one's own. Nothing imports them."""
