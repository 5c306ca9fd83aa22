"""Files and folders, written completely or not at all.

files      reads regular files only, and writes through a temporary file that is renamed
locks      one writer per folder; a lock ends with its process, and stays with a folder that is renamed
folders    replaces a folder: the new one is renamed into place, and the one before is NAME.old
targets    the folder that a save, an import or an export writes
hub        repositories on the Hugging Face hub, and their downloads
checksums  the SHA256SUMS of a folder, and the files that have changed since

Nothing is merged, links are not followed, and only temporary names and a NAME.old made here are ever removed.
A process may be killed at any time: what it leaves is known by its name and its lock, and removed by the next one.
"""
