// Tensors: values, distribution over a mesh, random streams, gradients.
export module tessera:tensors;

import tessera.autograd;
import tessera.base;
import tessera.dtensor;
import tessera.tensor;

export namespace tessera {

// Tensors and how they are made.
using tessera::alias, tessera::detached, tessera::empty, tessera::from_memory, tessera::from_values,
    tessera::full, tessera::local_of, tessera::to_doubles, tessera::zeros;
using tessera::Spec, tessera::Tensor, tessera::Tensors;
using tessera::StateDict;
using tessera::to_string;

// Distribution: from whole tensors or parts, to another layout, to another mesh.
using tessera::AllowRedistribution, tessera::PlainIsReplicate;
using tessera::cross_meshes, tessera::Crossing, tessera::deep_copy, tessera::distribute,
    tessera::distribute_from, tessera::from_local, tessera::full_tensor,
    tessera::PendingRedistribution, tessera::redistribute, tessera::redistribute_async,
    tessera::to_local;
using tessera::distributed_arange, tessera::distributed_empty, tessera::distributed_full,
    tessera::distributed_normal, tessera::distributed_ones, tessera::distributed_uniform,
    tessera::distributed_zeros;
using tessera::local_map, tessera::LocalFunction, tessera::LocalMapOptions;

// What was communicated and computed.
using tessera::Account, tessera::AccountScope, tessera::CollectiveWork, tessera::Communication,
    tessera::CommunicationReport, tessera::OperatorWork;

// Random numbers by stream and position.
using tessera::by_batch_row, tessera::random_state, tessera::random_stream, tessera::RandomStream,
    tessera::set_random_state, tessera::set_seed;

// What a thread computes of a step: a micro-batch, the last backward.
using tessera::step_context, tessera::StepContext, tessera::StepScope;

// Gradients, hooks, functions with a backward of their own, recomputation.
using tessera::add_final_accumulate_hook, tessera::add_gradient_hook,
    tessera::add_post_accumulate_hook, tessera::GradientHook, tessera::queue_final_callback;
using tessera::backward, tessera::BackwardOptions, tessera::grad_enabled, tessera::gradients,
    tessera::is_leaf, tessera::NoGrad;
using tessera::checkpoint, tessera::CheckpointedFunction;
using tessera::FunctionBackward, tessera::record_function;

}  // namespace tessera
