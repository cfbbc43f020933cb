export module tessera.checkpoint:steps;

import tessera.base;

export namespace tessera {

/// FOLDER/step-00000100: the path of a step's checkpoint.
std::string checkpoint_folder(const std::string& folder, std::int64_t step);

/// The checkpoints in `folder` (their paths), newest first, whether or not they can be read: also
/// links that lead nowhere. `folder` may be an address of a store, as in the functions below; there
/// only what has a checkpoint.json is one. What crashed saves have left is not among them. Error
/// (input): there is a folder, and it cannot be read.
std::vector<std::string> checkpoints_in(const std::string& folder);

/// Error: the folder of a run's checkpoints was removed, moved or replaced since it is held.
void check_checkpoint_folder(const HeldFolder& folder);

/// The newest checkpoint in `folder` (its path), or nothing when there is none. What crashed saves
/// have left is ignored. Error (input): the newest cannot be read; the text names it and the
/// newest good one.
std::optional<std::string> latest_checkpoint(const std::string& folder);

/// Removes all but the `keep` newest checkpoints in `folder`, wherever it has been moved to; for
/// one rank. Of each, only the files that its index names: what else is in it stays, and no link is
/// followed and no other file system entered. A checkpoint that is being removed is never seen as
/// one. Error (input): keep is below
/// 1. Error, after all others are removed: some cannot be; each is whole, or goes with a later
/// call.
void prune_checkpoints(const HeldFolder& folder, int keep);

}  // namespace tessera
