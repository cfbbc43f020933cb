export module tessera.runs:objects;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import :spec;
import :task;

// From a config to the library's objects; shared by the ranks and by the check before the launch.

export namespace tessera::runs {

/// The model that a run trains, on the meta device, with its frozen parameters. Errors (input): see
/// Task::model and nn::freeze; the model does not have what a key asks for. `change`: what replaces
/// modules of it, before parameters get their type.
std::shared_ptr<nn::Module> training_model(
    const Task& task, const RunSpec& config,
    const std::function<void(nn::Module& model)>& change = {});

/// The config's mesh; one axis "rank" of size 1 where it has none.
DeviceMesh make_mesh(const RunSpec& config);

/// The device of the rank with this number among the ranks of its machine. Errors (input): there is
/// no such device; there are more ranks than devices.
Device device_of(const RunSpec& config, int number, int ranks);
std::vector<parallel::StyleEntry> style_entries(const RunSpec& config);
/// Adds the entries of [[parallel]] by which a run's model is fully sharded, as
/// parallel::fully_shard does it with a model; without an axis, along all of spec.mesh. Error
/// (input): a style that is a class of the program itself.
void fully_shard(RunSpec& spec, const parallel::FullyShardOptions& options = {});

/// Errors (input), with the place in the config: no such optimizer, options that it does not have,
/// a group that matches no parameter, of these and of the whole model's.
std::unique_ptr<optim::Optimizer> make_optimizer(const RunSpec& config,
                                                 std::vector<nn::ParameterPointer> parameters,
                                                 std::span<const nn::ParameterPointer> whole = {});

/// The task's own optimizer of the model's parameters, or that of the config. Errors: as above.
std::unique_ptr<optim::Optimizer> task_optimizer(const Task& task, const RunSpec& config,
                                                 nn::Module& model);

/// How many threads compute for a rank: train.threads, or its share of the cores.
int threads_of_rank(const RunSpec& config);

/// The learning rate of every step.
optim::Schedule make_schedule(const RunSpec& config);

/// How gradients are limited.
optim::Clipping make_clipping(const TrainConfig& config);

}  // namespace tessera::runs
