export module tessera.train:stage_states;

import tessera.base;

export namespace tessera {

/// What the stages of a model tell each other of steps besides values: the forms of the hidden
/// states between them (types, shapes, layouts), the random numbers that the stages before have
/// drawn, and how a step ends. It is the same in all steps of a kind, so it can be known before
/// any: on the meta device, where stages are planned one after the other and nobody sends it, each
/// stage leaves what it knows for the next one.
struct StageStates {
  /// The hidden states after a stage.
  struct StageOutput {
    std::string text = {};
    bool exact = true;  // all stages before it were planned before it
  };
  struct Kind {
    std::map<std::pair<int, int>, StageOutput> after = {};  // by stage and micro-batch
    std::string end = {};   // of the last stage; empty: it is not known
    bool end_exact = true;  // as StageOutput::exact
  };
  std::map<std::string, Kind> kinds = {};  // of steps

  /// Whether nothing is missing or guessed: a rank of several stages is planned before the ranks of
  /// those between, and again after them.
  bool exact() const;
};

}  // namespace tessera
