"""Atomic writes of files and folders.

files      reads only regular files, and writes to a temporary file that is then renamed; locks: one writer per
           folder, until its process ends
folders    atomic replacement of a folder; the previous folder becomes NAME.old; output folders of commands
hub        repositories on the Hugging Face hub, and their downloads
checksums  the SHA256SUMS of a folder, to detect changed files

Folders are never merged, and links are not followed. Only temporary files and folders, and a NAME.old created here, are
ever removed. The next process removes leftovers of a crash, which it identifies by name and lock.
"""
