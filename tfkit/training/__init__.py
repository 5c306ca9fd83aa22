"""Training of a recipe in a run folder.

setup       data, tokenizer and model of a recipe: start here
loop        steps, validations and checkpoints; step.py computes the gradient of one step
objective/  training tasks; metric/ scores; optimizer.py and schedule.py updates
lifecycle   starts, resumes and ends training; the folder of a run is in tfkit/runs
"""
