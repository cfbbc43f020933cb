export module tessera.checkpoint:steps;

import tessera.base;

export namespace tessera {

/// FOLDER/step-00000100: the path of a step's checkpoint.
std::string checkpoint_folder(const std::string& folder, std::int64_t step);

/// The checkpoints in `folder` (their paths), newest first, whether or not they can be read. What
/// crashed saves have left is not among them.
std::vector<std::string> checkpoints_in(const std::string& folder);

/// The newest checkpoint in `folder` (its path), or nothing when there is none. What crashed saves
/// have left is ignored. Error (input): the newest cannot be read; the text names it and the
/// newest good one.
std::optional<std::string> latest_checkpoint(const std::string& folder);

/// Removes all but the `keep` newest checkpoints in `folder`; for one rank. A checkpoint that is
/// being removed is never seen as one. Error: keep is below 1, the system refuses.
void prune_checkpoints(const std::string& folder, int keep);

}  // namespace tessera
