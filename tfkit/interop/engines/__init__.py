"""Out to engines that run a model without torch: CTranslate2."""

MODEL = "model.bin"  # by which a folder of CTranslate2 is known
VOCABULARIES = ("vocabulary.json", "shared_vocabulary.json", "source_vocabulary.json", "target_vocabulary.json")
