"""Atomic writes of files and folders.

files      reads regular files only, and writes through a temporary file that is renamed
locks      one writer per folder; a lock ends with its process, and stays with a renamed folder
folders    replaces a folder: the new one is renamed into place, the previous one becomes NAME.old
targets    output folders of a save, an import or an export
hub        repositories on the Hugging Face hub, and their downloads
checksums  the SHA256SUMS of a folder, and changed files

Nothing is merged, links are not followed, and only temporary names and a NAME.old created here are ever removed.
After a crash, leftovers are identified by name and lock, and removed by the next process.
"""
