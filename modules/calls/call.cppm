export module tessera.calls:call;

import tessera.base;

export namespace tessera::collective {

/// Kinds of collective calls: of communicators, of what operators declare (Communicates), and of
/// the steps of a redistribution (StepKind). Each has a row in the table of forms.
enum class CallKind : std::uint8_t {
  barrier,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  all_to_all_counts,
  broadcast,
  scatter,
  scatter_counts,
  gather,
  reduce,
  shift,
  all_gather_segments,
  reduce_scatter_segments,
  all_reduce_segments,
  send,
  receive,
};

/// "all_gather", "barrier", ...
std::string_view name_of(CallKind kind);

/// A call as the ranks of a group must agree on it; compared at every call.
struct Call {
  CallKind kind = CallKind::barrier;
  DType dtype = DType::u8;
  ReduceOp reduce = ReduceOp::sum;
  std::int32_t root = -1;   ///< rank within the group, for calls that have a root
  std::int64_t count = 0;   ///< elements, as the call counts them
  std::uint64_t shape = 0;  ///< hash of what else must agree (the extents of segments)
  friend bool operator==(const Call&, const Call&) = default;
};

/// "all_reduce(f32, 128, sum)", "broadcast(f32, 7, root 2)", "barrier()"; with the name of what it
/// moves, where one was given (identity_of).
std::string to_string(const Call& call);

/// What calls over segments move, such as a group of parameters: ranks that are about to exchange
/// different tensors of equal extents get an error.
struct PayloadIdentity {
  std::int64_t identity = 0;
  friend bool operator==(const PayloadIdentity&, const PayloadIdentity&) = default;
};
/// A number for the name of what moves. Errors about ranks whose calls differ show the name.
std::int64_t identity_of(std::string_view name);
/// Says that calls with this `shape` move this.
void note_call(std::uint64_t shape, PayloadIdentity moved);

/// What the calling thread is doing ("in module 'layers.3'"), for errors about its calls; empty:
/// nothing is known. A module above sets the function when the library is loaded.
std::string work_in_words();
void set_work_in_words(std::string (*say)());

}  // namespace tessera::collective
