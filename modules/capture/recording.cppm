export module tessera.capture:recording;

import tessera.base;
import tessera.tensor;
import tessera.program;

export namespace tessera {

/// One execution of a step as a Recorder has seen it.
struct Recording {
  Program program;
  StepVariables variables;
};

/// The program of a recorded step. Errors: random numbers of no stream of the step; see
/// check_guards.
Program program_of(Recording recording);
/// Program of a step that was recorded twice with other variables. Errors that name the
/// instruction: the steps differ; an argument differs that does not follow from the variables.
Program program_of(const Recording& first, Recording second);

}  // namespace tessera
