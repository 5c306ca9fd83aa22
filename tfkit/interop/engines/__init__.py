"""Export to torch-free inference engines: CTranslate2."""

MODEL = "model.bin"  # file that identifies a CTranslate2 folder
VOCABULARIES = ("vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json")
