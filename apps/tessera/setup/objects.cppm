export module tessera.app.setup:objects;

import tessera.base;
import tessera.mesh;
import tessera.tensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.app.base;
import tessera.app.config;
import tessera.app.model;

// From a config to the library's objects; shared by the ranks and by the check before the launch.

export namespace tessera::app {

/// The model that a config trains, on the meta device, with its frozen parameters. Errors (input):
/// see nn::freeze.
/// `change`: what replaces modules of it, before parameters get their type.
std::shared_ptr<nn::LanguageModel> make_model(
    const ModelShape& shape, const Config& config,
    const std::function<void(nn::Module& model)>& change = {});

/// The config's mesh; one axis "rank" of size 1 where it has none.
DeviceMesh make_mesh(const Config& config);

/// The device of the rank with this number among the ranks of its machine. Errors (input): there is
/// no such device; there are more ranks than devices.
Device device_of(const Config& config, int number, int ranks);
std::vector<parallel::StyleEntry> style_entries(const Config& config);

/// Errors (input), with the place in the config: no such optimizer, options that it does not have,
/// a group that matches no parameter, of these and of the whole model's.
std::unique_ptr<optim::Optimizer> make_optimizer(const Config& config,
                                                 std::vector<nn::ParameterPointer> parameters,
                                                 std::span<const nn::ParameterPointer> whole = {});

/// How many threads compute for a rank: train.threads, or its share of the cores.
int threads_of_rank(const Config& config);

/// The learning rate of every step.
optim::Schedule make_schedule(const Config& config);

/// How gradients are limited.
optim::Clipping make_clipping(const TrainConfig& config);

}  // namespace tessera::app
