// The files of one save into a store.
module tessera.checkpoint:store_job;

import tessera.base;
import tessera.collective;
import tessera.stores;
import tessera.tensor;
import :checkpoint_index;
import :job;
import :save_plan;

namespace tessera::checkpoint_detail {

/// Sends a file whose parts have these hashes, and returns what an index says of it. `values`: a
/// part's, packed; asked for once each, in their order. Errors: of the store.
StoredFile send_file(stores::OpenWritableStore& store, const CheckpointFile& file,
                     const std::vector<std::vector<std::string>>& hashes,
                     const std::function<Tensor(std::size_t part)>& values);

/// Sends an index, once the store has all files that it names; this makes the checkpoint. The files
/// of one that it replaces are removed then. Errors: of the store.
void send_index(stores::OpenWritableStore& store, const CheckpointIndex& index);

/// As run_job, for a job whose folder is this address: every rank sends the parts that it writes as
/// one object, from memory, and rank 0 sends the index when all of them are there.
/// CheckpointRefusal on all ranks: the store did not take something; what was sent is no checkpoint
/// then.
void run_store_job(collective::Communicator& group, const SaveJob& job,
                   const stores::Address& place);

}  // namespace tessera::checkpoint_detail
