"""Training of a recipe into the folder of a run.

setup       data, tokenizer and model of a recipe: begin here
loop        steps, validations and checkpoints; step.py has the gradient of one step
objective/  what is learned; metric/ what is measured; optimizer.py and schedule.py how
checkpoint  what exact resumption needs; folder.py names the files of a run, record.py what is known of it
claim       one training a folder; lifecycle.py begins, resumes and ends it
"""
