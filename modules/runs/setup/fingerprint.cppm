export module tessera.runs:fingerprint;

import tessera.base;
import tessera.hub;
import :dataset;
import :spec;

// Values that determine a run's loss curve, by name: a checkpoint keeps them, so that a run does
// not silently continue another one.

export namespace tessera::runs {

/// The config's words -> JSON texts. Every key of [model], [data], [train], [dpo] and [optimizer]
/// is among them, except those that do not change the curve: steps, accumulation, recomputation,
/// threads and how often a validation looks at how much. Sizes are the resolved ones;
/// `data.content` and `model.from` are hashes of what is read, not paths.
using Fingerprint = std::map<std::string, std::string>;

/// Of a run. The data are read once for it.
Fingerprint fingerprint_of(const RunSpec& config, const hub::ModelShape& shape,
                           const Dataset& data);

/// Of a run that classifies texts. `model`: config.json of what is trained.
Fingerprint class_fingerprint(const RunSpec& config, const std::string& model, const Dataset& data);

/// Of a run with a program's own task, of which nothing is known. `own_optimizer`: the program's
/// too, but for its learning rates.
Fingerprint own_fingerprint(const RunSpec& config, bool own_optimizer);

/// What versions that did not have a key computed: the initial values of the family's keys, and of
/// others that `own` has.
Fingerprint earlier_values(const hub::ModelShape& shape, const Fingerprint& own);

/// As a JSON object, for a checkpoint's meta data.
std::string to_json(const Fingerprint& fingerprint);

/// The fingerprint in a checkpoint's meta data. Error (input): there is none.
Fingerprint stored_fingerprint(const std::string& meta, const std::string& checkpoint);

/// The differences, "optimizer.lr: 0.001 in the checkpoint, 0.0003 in the config", that
/// `checkpoint.allow` permits: by name or by section. `earlier`: values that `written` has where it
/// does not say otherwise. Error (input) that lists the others and says how to restart and how to
/// permit them.
std::vector<std::string> compare(const Fingerprint& written, const Fingerprint& own,
                                 const Fingerprint& earlier, const RunSpec& config,
                                 const std::string& checkpoint);

}  // namespace tessera::runs
