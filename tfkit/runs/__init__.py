"""The folder of a run, below the loop that fills it.

folder      names of its files; claim.py: exclusive use, and checks before a run is resumed or replaced
checkpoint  state for exact resumption; weights.py: safetensors files
history     run.json, metrics.jsonl and environment.json; record.py: checksums, and damaged files
supply      the recipe of a run and the code that it needs; kept.py: files of another library
card        the model card
"""
