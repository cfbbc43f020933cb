// The files of one save, apart from when and in which thread they are written.
module tessera.checkpoint:job;

import tessera.base;
import tessera.collective;
import tessera.placement;
import tessera.tensor;
import :checkpoint_index;
import :save_plan;
import :save;

namespace tessera::checkpoint_detail {

struct SaveJob {
  std::string folder;
  IndexedTensors tensors;  // of all ranks
  std::vector<std::vector<int>> groups;
  CheckpointFile file;  // of this rank's group
  /// For each part of the file that this rank writes: its place in file.parts, and its values, on
  /// any device and with any strides.
  std::map<std::size_t, Tensor> values;
  std::map<std::string, StateDict::Scalar> scalars;
  std::string meta_data;
  SaveOptions options;
};

/// The tensors of a state as an index has them. Error: one is Partial.
IndexedTensors described(const StateDict& state);

/// The values are those of the state itself: no copies. All ranks of `group` (all of the world)
/// call it; they communicate a few bytes, and more only where they do not save the same tensors.
/// Error, the same on all ranks: a tensor that is Partial or has no memory; the ranks disagree.
SaveJob make_job(collective::Communicator& group, const std::string& folder, const StateDict& state,
                 const std::string& meta_data, const SaveOptions& options);

/// The values that `rank` writes of a file, as SaveJob has them: those of the state itself.
std::map<std::size_t, Tensor> values_to_write(const CheckpointFile& file, const StateDict& state,
                                              int rank);

/// Writes it. All ranks of `group` (all of the world) call it in a thread that acts as the rank,
/// and nobody else may use groups of this name meanwhile. An error of one rank is thrown on all.
void run_job(collective::Communicator& group, const SaveJob& job);

/// The hashes of a packed tensor's bytes, after a look at the values. Error: options.only_finite,
/// and one is not.
std::vector<std::string> checked_hashes(const std::string& name, const Tensor& packed,
                                        const SaveOptions& options);

/// The index of the job, with the files of all ranks' reports.
CheckpointIndex whole_index(const SaveJob& job, const std::vector<std::string>& reports);

/// Rank 0's last act: the index.
void write_index(const std::string& temporary, const CheckpointIndex& index);

/// A tensor's elements, one after the other, on the host.
Tensor packed(const Tensor& tensor);
std::span<const std::byte> bytes_of(const Tensor& packed);

}  // namespace tessera::checkpoint_detail
