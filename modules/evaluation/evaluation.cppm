// Tasks of lm-evaluation-harness: questions in a file's form, and what a model makes of them.
export module tessera.evaluation;

export import :stored_answers;  // what a model has answered, in a file
export import :task_results;    // the scores of a task with a model
