export module tessera.train:stage_states;

import tessera.base;

export namespace tessera {

/// The forms of the hidden states between a model's stages (types, shapes, layouts), where stages
/// are planned one after the other on the meta device and nobody sends them: each stage leaves that
/// of its own and finds that of the stage before. Give one to the trainings of all stages.
struct PlannedStates {
  std::map<int, std::string> after;  // by stage
};

}  // namespace tessera
