"""Planted bugs in the data of a node on its disk: the log, private files, checkpoints.

Must NOT run anything (shell_mutants.py).
"""

from lowcomm.checkpoints import checkpoint, residue_file, tensor_files
from lowcomm.rank_control.checkpoint_schedule import CheckpointSchedule
from peers.storage import fsync, wal_format
from peers.storage.wal import Wal
from peers.storage.wal_format import State
from peers.storage.wal_writer import WalWriter
from sims.mutations.patch import Edit, Mutant

_WAL = ("tests/peers/storage/test_wal.py",)
_RECORDS = ("tests/peers/storage/test_wal_format.py", "tests/peers/storage/test_wal.py")
_SCRIBE = ("tests/peers/storage/test_wal_writer.py",)
_DURABLE = ("tests/peers/storage/test_fsync.py",)
_CHECKPOINT = ("tests/lowcomm/checkpoints/test_checkpoint.py",)
_CHECKPOINTER = (
    "tests/lowcomm/rank_control/test_checkpoint_schedule.py",
    "tests/lowcomm/outer_state/test_state_moment.py",
)
_RESIDUES = ("tests/lowcomm/checkpoints/test_residue_file.py",)

LOG_MUTANTS = (
    Mutant(
        "log-appends-without-a-sync",
        "A vote that the peer has sent is forgotten if the machine loses power.",
        Edit(
            Wal._append,
            "self._disk.sync(self._fd)\n    except",
            "pass\n    except",
        ),
        tests=_WAL,
    ),
    Mutant(
        "log-renames-before-the-sync",
        "After a crash the file's name may be on the disk, but not its bytes.",
        Edit(Wal._write_anew, "self._disk.sync(fd)", "pass"),
        tests=_WAL,
    ),
    Mutant(
        "log-does-not-sync-its-directory",
        "A crash brings back the file before the rename, without later acknowledged entries.",
        Edit(Wal._write_anew, "self._sync_directory(self._directory)", "pass"),
        tests=_WAL,
    ),
    Mutant(
        "log-does-not-sync-a-new-directory",
        "A crash removes the directory with all acknowledged entries in it.",
        Edit(Wal._make_directory, "self._sync_directory(directory.parent)", "pass"),
        tests=_WAL,
    ),
    Mutant(
        "log-appends-after-a-failed-sync",
        "Linux marks the lost pages clean: the next sync succeeds though they are not written.",
        Edit(
            Wal._append,
            "self._disk.truncate(self._fd, self._end)\n        raise\n    self._end",
            "self._disk.truncate(self._fd, self._end)\n        self._anew = False\n"
            "        raise\n    self._end",
        ),
        tests=_WAL,
    ),
    Mutant(
        "log-keeps-half-a-record-of-a-full-disk",
        "The next record follows half a record: a restart finds damage and refuses the log.",
        Edit(
            Wal._append,
            "self._disk.truncate(self._fd, self._end)\n        self._anew = False",
            "self._anew = False",
        ),
        tests=_WAL,
    ),
    Mutant(
        "log-trusts-what-a-killed-process-left",
        "The kernel may not have written it yet: the peer acknowledges data that a crash loses.",
        Edit(Wal._load, "self._disk.sync(self._fd)", "pass"),
        tests=_WAL,
    ),
    Mutant(
        "log-does-not-cut-off-a-torn-record",
        "The next record follows the torn one: a restart finds damage and refuses the log.",
        Edit(Wal._load, "if self.cut_bytes:", "if False:"),
        tests=_RECORDS,
    ),
    Mutant(
        "log-applies-a-write-that-failed",
        "The next file contains data that was reported to the caller as not written.",
        Edit(
            Wal.write,
            "self._append(record)\n            self._state.apply(change)",
            "self._state.apply(change)\n            self._append(record)",
        ),
        tests=_WAL,
    ),
    Mutant(
        "log-keeps-the-old-end-in-a-new-file",
        "Records have digests of another place in the file: a restart refuses them.",
        Edit(
            Wal._write_anew,
            "self._salt, self._end = salt, end",
            "self._salt = salt",
        ),
        tests=_WAL,
    ),
    Mutant(
        "log-does-not-compare-a-payload's-digest",
        "A torn last record is taken for a complete one.",
        Edit(
            wal_format._payloads,
            "if xxhash.xxh3_64_intdigest(payload, seed=_seed(salt, offset)) != digest:",
            "if len(payload) < length:",
        ),
        tests=_RECORDS,
    ),
    Mutant(
        "log-takes-damage-for-a-torn-record",
        "Votes after the damaged place are cut off, and the peer votes twice.",
        Edit(
            wal_format._payloads,
            "if _any_head_after(data, offset, salt):",
            "if False:",
        ),
        tests=_RECORDS,
    ),
    Mutant(
        "log-takes-a-damaged-payload-for-a-torn-record",
        "Records after the damaged one are cut off without an error.",
        Edit(wal_format._payloads, "if start + length < len(data):", "if False:"),
        tests=_RECORDS,
    ),
    Mutant(
        "log-record-length-off-by-one",
        "The end of the log lies one byte early: an undamaged last record loses its last byte.",
        Edit(
            wal_format.load,
            "end += HEAD.size + DIGEST_BYTES + len(payload)",
            "end += HEAD.size + DIGEST_BYTES + len(payload) - 1",
        ),
        tests=_RECORDS,
    ),
    Mutant(
        "log-does-not-count-sealed-records",
        "A file that lost records of its first write is taken for a torn one.",
        Edit(wal_format.load, "if records < first_records:", "if False:"),
        tests=_RECORDS,
    ),
    Mutant(
        "log-digest-without-its-place",
        "A copy of a record elsewhere in the file is taken for a record.",
        Edit(wal_format._seed, "(salt + offset)", "salt"),
        tests=_RECORDS,
    ),
    Mutant(
        "log-snapshot-deletes-one-entry-too-many",
        "The first entry after the snapshot is gone, and all later ones move one place.",
        Edit(
            State.apply,
            "change.snapshot.index - self.base, ())",
            "change.snapshot.index - self.base + 1, ())",
        ),
        tests=_RECORDS,
    ),
    Mutant(
        "log-keeps-what-a-leader-replaced",
        "Entries of a deposed leader stay after those of the new one.",
        Edit(
            State.apply,
            "self._replace(max(place, 0), len(self.entries), ",
            "self._replace(max(place, 0), max(place, 0) + len(change.entries), ",
        ),
        tests=_RECORDS,
    ),
    Mutant(
        "scribe-answers-before-the-disk",
        "The core sends a vote that is not on the disk yet.",
        Edit(
            WalWriter.run,
            "try:\n                await loop",
            "self._feed(Persisted(persist.write_number))\n"
            "            try:\n                await loop",
        ),
        tests=_SCRIBE,
    ),
    Mutant(
        "scribe-writes-on-top-of-a-failed-write",
        "Entries follow a gap: the log has no entry where the failed write was.",
        Edit(WalWriter.run, "if persist.failures < self._failures:", "if False:"),
        tests=_SCRIBE,
    ),
)

FILE_MUTANTS = (
    Mutant(
        "private-file-renamed-before-the-sync",
        "After a crash the key's file has its name but no content.",
        Edit(fsync.write_private, "os.fsync(held)", "pass"),
        tests=_DURABLE,
    ),
    Mutant(
        "private-file-without-a-name-on-the-disk",
        "A crash brings back the old key after the new one was used.",
        Edit(fsync.write_private, "sync(path.parent)", "pass"),
        tests=_DURABLE,
    ),
    Mutant(
        "private-file-readable-for-all",
        "Every user of the machine can read the node's key.",
        Edit(fsync.write_private, "0o600", "0o644"),
        tests=_DURABLE,
    ),
    Mutant(
        "private-file-leaves-half-a-key",
        "A failed write leaves a part of a key beside the file.",
        Edit(
            fsync.write_private,
            "beside.unlink(missing_ok=True)  # It may hold",
            "pass  # It may hold",
        ),
        tests=_DURABLE,
    ),
)

CHECKPOINT_MUTANTS = (
    Mutant(
        "checkpoint-named-before-it-is-synced",
        "After a crash the newest checkpoint has its name and holes in its files.",
        Edit(
            checkpoint.write_checkpoint,
            "sync(path)\n        sync(temporary)",
            "pass",
        ),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-arrays-not-synced",
        "After a crash the checkpoint is complete by its cut, but its arrays are missing.",
        Edit(checkpoint._written, "sync(path)", "pass"),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-directory-not-synced",
        "The checkpoint is announced, and then a crash removes it.",
        Edit(checkpoint._publish, "sync(final.parent)", "pass"),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-written-in-its-final-place",
        "It is marked complete before its arrays are written: a crash leaves half of it.",
        Edit(
            checkpoint.write_checkpoint,
            "temporary = directory / (_WRITING + final.name)",
            "temporary = final",
        ),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-deletes-its-namesake-first",
        "A crash between the two renames leaves no checkpoint of this round at all.",
        Edit(checkpoint._publish, "final.rename(old)", "shutil.rmtree(final)"),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-digest-not-compared",
        "A flipped bit on the disk becomes part of the model.",
        Edit(
            checkpoint._check_file,
            "if digests and _file_digest(path) != expected.xxh3_128:",
            "if False:",
        ),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-of-arrays-that-are-not-the-cut's",
        "A peer goes on from a state that the run never had.",
        Edit(checkpoint._check_states, "if place.state_digest != digest:", "if False:"),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-prunes-the-newest",
        "The only complete checkpoint is deleted.",
        Edit(checkpoint.prune, "candidates.index(newest) + 1 :", "candidates.index(newest) :"),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-counts-a-broken-one-as-kept",
        "Pruning keeps a checkpoint that cannot be read, and deletes one that can.",
        Edit(
            checkpoint.prune,
            "if kept < keep and _complete(path, digests=False):",
            "if kept < keep:",
        ),
        tests=_CHECKPOINT,
    ),
    Mutant(
        "checkpoint-of-two-parameters-of-one-name",
        "Only one of them is written, and it is read into both places.",
        Edit(tensor_files.write_arrays, "if name in tensors:", "if False:"),
        tests=("tests/lowcomm/checkpoints/test_tensor_files.py",),
    ),
    Mutant(
        "ledger-newer-than-the-arrays",
        "Samples committed after the arrays were lent count as trained after a restore.",
        Edit(
            CheckpointSchedule._start,
            "remaining_at(core.run_state, moment.round)",
            "core.run_state.ledger.remaining",
        ),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "residue-read-while-the-checkpoint-is-written",
        "The residue belongs to a later round than the arrays beside it.",
        Edit(
            CheckpointSchedule._start,
            "job = self._job(",
            "vars(self)['late'] = replica\n    job = self._job(",
        ),
        Edit(CheckpointSchedule._job, "moment.residues", "vars(self)['late'].capture().residues"),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "checkpoint-borrows-out-of-turn",
        "The arrays are lent in the middle of a step of the worker thread.",
        Edit(
            CheckpointSchedule.begin_writing,
            "self._compute(replica.capture, lambda moment: self._start(core, replica, moment))",
            "self._start(core, replica, replica.capture())",
        ),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "checkpoint-of-a-void-branch-is-announced",
        "The run was rolled back during the write; a later start goes on from a void state.",
        Edit(CheckpointSchedule._write, "if life == self._life:", "if True:"),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "checkpoints-of-a-void-branch-stay",
        "A later start goes on from a state that a Restore took back.",
        Edit(
            CheckpointSchedule.take_back,
            "over = is_void(read_cut(path), run_state)",
            "over = False",
        ),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "no-checkpoint-after-a-restore",
        "Rounds after a Restore repeat earlier round numbers: no checkpoint is written.",
        Edit(
            CheckpointSchedule.take_back,
            "self._last_round = min(self._last_round, round_)",
            "pass",
        ),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "checkpoint-prunes-the-ranks'-state",
        "The ranks' state is deleted while a checkpoint or a later incarnation needs it.",
        Edit(CheckpointSchedule._prune_rank_states, "path.name not in kept and ", ""),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "a-failed-checkpoint-counts-as-written",
        "When the node leaves, its last state is not written anywhere.",
        Edit(
            CheckpointSchedule._write,
            "self._last_round = -1  # `finish` tries again.",
            "pass",
        ),
        tests=_CHECKPOINTER,
    ),
    Mutant(
        "residue-of-another-branch",
        "After a Restore the residue of a void state goes into the next contribution.",
        Edit(
            residue_file._read,
            "if (of.version, of.state_digest) != (version, state_digest):",
            "if of.version != version:",
        ),
        tests=_RESIDUES,
    ),
    Mutant(
        "residue-digest-not-compared",
        "A flipped bit on the disk goes into the next contribution.",
        Edit(
            residue_file._read,
            "return residue_P if _digest(residue_P) == of.xxh3_128 else None",
            "return residue_P",
        ),
        tests=_RESIDUES,
    ),
)

DISK_MUTANTS = (*LOG_MUTANTS, *FILE_MUTANTS, *CHECKPOINT_MUTANTS)
