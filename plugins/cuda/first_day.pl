#!/usr/bin/env perl
# ./dev gpu: all that is to be known of Tessera on a GPU, by what the program has: checks, comparisons with the CPU,
# rates. Each step leaves FOLDER/STEP.json, and is not repeated once it has passed; FOLDER/gpu.md is the page.
#
#   ./dev gpu [--folder FOLDER] [--again STEP|all]... [--only STEP]... [--small]
#
#   --folder   runs/gpu/results by default
#   --again    repeats a step that has passed
#   --only     makes these steps only
#   --small    small sizes, as the emulator needs them: its times mean nothing
#
# The exit status is 1 where a step has failed, and where there is no GPU.
use strict;
use warnings;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use File::Path qw(make_path);
use Getopt::Long;
use JSON::PP;
use List::Util qw(sum);
use POSIX ();
use Time::HiRes qw(time);

my ($program, @plugins, @again, @only, $small);
my $root = abs_path(dirname(__FILE__) . '/../..');
my $folder = "$root/runs/gpu/results";
GetOptions('program=s' => \$program, 'plugin=s' => \@plugins, 'folder=s' => \$folder, 'again=s' => \@again, 'only=s' => \@only,
  'small' => \$small) && !@ARGV && $program
  or die "usage: ./dev gpu [--folder FOLDER] [--again STEP|all]... [--only STEP]... [--small]\n";
my @named = map { ('--plugin', $_) } @plugins;
my $json = JSON::PP->new->canonical->pretty;
my $size = $small ? 'small' : 'full';
my $step_seconds = $small ? 900 : 420;  # a command that takes longer has failed
$program = abs_path($program) // die "gpu: there is no program\n";
make_path("$folder/logs");
$folder = abs_path($folder);

sub text_of {
  my ($path) = @_;
  open my $file, '<:raw', $path or die "$path: $!\n";
  local $/;
  return scalar <$file>;
}

sub write_file {
  my ($path, $text) = @_;
  open my $file, '>:raw', "$path.new" or die "$path: $!\n";
  print {$file} $text;
  close $file or die "$path: $!\n";
  rename "$path.new", $path or die "$path: $!\n";
}

# Runs a command; its output is FOLDER/logs/NAME. (status, stdout): 0 if it ended well, else what happened, as text.
sub try {
  my ($name, @command) = @_;
  my ($out, $err) = ("$folder/logs/$name.out", "$folder/logs/$name.err");
  my $pid = fork // die "fork: $!\n";
  if ($pid == 0) {
    setpgrp 0, 0;
    open STDIN, '<', '/dev/null';
    open STDOUT, '>', $out or die "$out: $!\n";
    open STDERR, '>', $err or die "$err: $!\n";
    no warnings 'exec';
    exec @command;
    print STDERR "$command[0]: $!\n";
    POSIX::_exit(127);
  }
  my $late = 0;
  eval {
    local $SIG{ALRM} = sub { die "late\n" };
    alarm $step_seconds;
    waitpid $pid, 0;
    alarm 0;
    1;
  } or do {
    die $@ unless $@ eq "late\n";
    kill -9, $pid;
    waitpid $pid, 0;
    $late = 1;
  };
  my $status = $?;
  return (0, text_of($out)) if $status == 0 && !$late;
  my $said = (grep { /\S/ && !/^warning:/ } split /\n/, text_of($err) . text_of($out))[0] // 'it printed nothing';
  return ($late ? "it took more than $step_seconds s" : ($status & 127 ? "signal " . ($status & 127) : "status " . ($status >> 8)) . ": $said",
    text_of($out));
}

# The stdout of a command that must end well.
sub run {
  my ($name, @command) = @_;
  my ($problem, $out) = try($name, @command);
  die "$name: $problem (see $folder/logs/$name.err)\n" if $problem;
  return $out;
}

sub median {
  my @sorted = sort { $a <=> $b } @_;
  return $sorted[$#sorted / 2];
}

# The steps of a training: {loss, grad_norm, tokens_per_second, memory_peaks} of each.
sub train {
  my ($name, $steps, @arguments) = @_;
  my $metrics = "$folder/logs/$name.jsonl";
  unlink $metrics;
  run($name, $program, 'train', $arguments[0], @named, "train.steps=$steps", 'optimizer.warmup=1', 'checkpoint.folder=', 'log.sample=0',
    "log.metrics=$metrics", @arguments[1 .. $#arguments]);
  my @made = grep { defined $_->{loss} } map { decode_json($_) } grep { /\S/ } split /\n/, text_of($metrics);
  die "$name: there are " . @made . " steps (expected $steps)\n" unless @made == $steps;
  return @made;
}

# [name, tolerance, config, option...] of runs of one rank
sub one_rank_runs {
  my $text = "$folder/logs/text";
  write_file($text, join ' ', map { "the number " . $_ * $_ . " is the square of $_;" } 1 .. 4000);
  my @data = ("data.text=['$text']", 'data.validation=0');
  push @data, 'model.dim=64', 'model.layers=2', 'data.seq_len=12', 'train.batch=4' if $small;
  my @llama = $small ? 'model.ffn_dim=64' : ();
  my @one = ('mesh.shape=[1]');
  return (
    ['f32', 1e-4, "$root/configs/one_rank.toml", @data, @llama],
    ['bf16', 2e-2, "$root/configs/bf16.toml", @data, @llama, @one],
    ['float8', 2e-2, "$root/configs/float8.toml", @data, @llama, @one],
    ['lora', 1e-4, "$root/configs/lora.toml", @data, @llama, @one],
    ['gpt2', 1e-4, "$root/configs/gpt2.toml", @data, 'mesh.shape=[1,1]'],
    ['loss_parallel', 1e-4, "$root/configs/loss_parallel.toml", @data, @llama, @one],
  );
}

my @captured = ('graph.capture=true', 'graph.executor=planned');
my @all_executors = (['eager'], ['planned', @captured], ['graphs', @captured, 'graph.device_graphs=true'],
  ['compiled', 'graph.capture=true', 'graph.executor=compiled']);

# Without NVRTC nothing is compiled.
sub executors {
  my ($run) = one_rank_runs();
  my ($problem) = try('nvrtc', $program, 'train', $run->[2], @named, @$run[3 .. $#$run], 'train.device=cuda', 'train.steps=1',
    'optimizer.warmup=0', 'checkpoint.folder=', 'log.metrics=', 'log.sample=0', @{$all_executors[-1]}[1 .. 2]);
  return grep { $_->[0] ne 'compiled' || !$problem || $problem !~ /NVRTC's library cannot be opened/ } @all_executors;
}

# The file of a plugin: a named one, or the installed one.
sub plugin_file {
  my ($name) = @_;
  return (grep { m{/$name\.so$} } @plugins)[0] // dirname($program) . "/../lib/tessera/plugins/$name.so";
}

# {step}: what it finds; it dies where something is wrong. `absent`: what it needs is not on this machine.
my %steps;
my @order = qw(doctor plugin operators sanitizer bits configs attention models nccl);

# The file with cuDNN's description of the device, for tests/cuda/devices; undefined: there is no cuDNN.
sub cudnn_device {
  my $file = "$folder/cudnn_device.json";
  unlink $file;
  local $ENV{TESSERA_CUDA_DNN_DEVICE} = $file;
  local $ENV{TESSERA_CUDA_ATTENTION} = 'auto';
  run('cudnn', $program, 'bench', 'device', @named, '--device', 'cuda:0', '--elements', 1 << 14, '--only', 'causal_attention', '--json');
  return undef unless -e $file;
  eval { decode_json(text_of($file)); 1 } or die "cudnn: its description of the device is no JSON (see $file): $@";
  return $file;
}

$steps{doctor} = sub {
  my $text = run('doctor', $program, 'doctor');
  my ($nvidia) = try('nvidia-smi', 'nvidia-smi', '--query-gpu=name,driver_version,memory.total', '--format=csv,noheader');
  my $name = $nvidia ? 'not known (no nvidia-smi)' : text_of("$folder/logs/nvidia-smi.out") =~ s/\n.*//sr;
  die "doctor: it says nothing of a device 'cuda'\n$text" unless @plugins || $text =~ /devices .*cuda/;
  return { device => $name, text => $text, cudnn => cudnn_device() };
};

$steps{plugin} = sub {
  my ($problem, $text) = try('plugin', $program, 'plugin', 'check', '--deviations', plugin_file('cuda'));
  die "plugin: $problem\n$text" if $problem;
  my ($passed, $of) = $text =~ /(\d+) of (\d+) checks passed/ or die "plugin: it does not say how many checks passed\n$text";
  die "plugin: $passed of $of checks passed\n" unless $passed == $of && $of > 0;
  my %shares = $text =~ /^ *deviation: (\S+) (\S+)$/mg;
  return { passed => $passed + 0, of => $of + 0, deviations => { map { $_ => $shares{$_} + 0 } keys %shares } };
};

# Rows of operators; those of products also with the fastest of the algorithms that cuBLASLt advises.
$steps{operators} = sub {
  my @bench = ($program, 'bench', 'device', @named, '--device', 'cuda:0', '--json', '--elements', $small ? 1 << 14 : 1 << 24);
  my $rows = decode_json(run('operators', @bench));
  local $ENV{TESSERA_CUDA_PRODUCTS} = 'measured';
  my %measured = map { $_->{name} => $_ } @{ decode_json(run('operators-measured', @bench)) };
  for my $row (grep { defined $_->{tflops} } @$rows) {
    my $other = $measured{ $row->{name} } // die "operators: $row->{name} was not measured with other algorithms\n";
    $row->{tflops_measured} = $other->{tflops};
    $row->{deviation} = $other->{deviation} if ($other->{deviation} // 0) > ($row->{deviation} // 0);
  }
  my @compared = grep { defined $_->{deviation} } @$rows;
  die "operators: none was compared\n" unless @compared;
  my @far = grep { !($_->{deviation} <= ($_->{name} =~ /bf16$/ ? 1e-2 : 1e-4)) } @compared;
  die join "\n", 'operators: their results are far from the CPU\'s:', map({ "$_->{name}: $_->{deviation}" } @far), '' if @far;
  my @slow = grep { defined $_->{share_of_clone} && $_->{share_of_clone} < 0.8 } @$rows;
  return { rows => $rows, compared => scalar @compared, below_80_percent => [map { $_->{name} } @slow] };
};

$steps{sanitizer} = sub {
  my ($tool) = grep { -x } map { "$_/compute-sanitizer" } split(/:/, $ENV{PATH}), ($ENV{CUDA_HOME} // '/usr/local/cuda') . '/bin';
  return { absent => 'compute-sanitizer is not on the PATH (it is part of the CUDA toolkit)' } unless $tool;
  my ($run) = one_rank_runs();
  my %found;
  for my $what (qw(memcheck racecheck)) {
    my $text = run("sanitizer-$what", $tool, '--tool', $what, '--error-exitcode', 9, $program, 'train', $run->[2], @named, @$run[3 .. $#$run],
      'train.device=cuda', 'model.layers=1', 'train.steps=2', 'optimizer.warmup=1', 'checkpoint.folder=', 'log.metrics=', 'log.sample=0');
    $found{$what} = ($text =~ /(ERROR SUMMARY|RACECHECK SUMMARY)(.*)/)[1] // die "sanitizer: $what printed no summary\n";
  }
  return \%found;
};

$steps{bits} = sub {
  my @found;
  my @executors = executors();
  for my $run (one_rank_runs()) {
    my ($name, undef, @arguments) = @$run;
    for my $executor (@executors) {
      my ($how, @options) = @$executor;
      my @bits = map { join ' ', map { "$_->{loss}:$_->{grad_norm}" } train("bits-$name-$how-$_", 5, @arguments, 'train.device=cuda', @options) } 1, 2;
      die "bits: two runs of $name, $how, differ:\n$bits[0]\n$bits[1]\n" unless $bits[0] eq $bits[1];
      push @found, "$name, $how";
    }
  }
  return { equal => \@found };
};

$steps{configs} = sub {
  my (@rows, @far);
  my $steps = $small ? 3 : 20;
  my @executors = executors();
  for my $run (one_rank_runs()) {
    my ($name, $tolerance, @arguments) = @$run;
    my @wanted = train("configs-$name-cpu", $steps, @arguments, 'train.device=cpu');
    for my $executor (@executors) {
      my ($how, @options) = @$executor;
      my @found = train("configs-$name-$how", $steps, @arguments, 'train.device=cuda', @options);
      my $largest = 0;
      for my $step (0 .. $steps - 1) {
        for my $what (qw(loss grad_norm)) {
          my ($w, $f) = ($wanted[$step]{$what}, $found[$step]{$what});
          my $difference = abs($f - $w) / (1 + abs $w);
          $largest = $difference if $difference > $largest;
        }
      }
      push @rows, { config => $name, executor => $how, steps => $steps, deviation => $largest, tolerance => $tolerance,
        tokens_per_second => median(map { $_->{tokens_per_second} } @found) };
      push @far, "$name, $how: $largest (at most $tolerance)" if $largest > $tolerance;
    }
  }
  die join "\n", 'configs: losses or norms are far from the CPU\'s:', @far, '' if @far;
  return { rows => \@rows };
};

# Attention by cuDNN, where it is, beside our own: the same losses, two runs with the same bits, and both rates.
$steps{attention} = sub {
  my ($run) = grep { $_->[0] eq 'bf16' } one_rank_runs();
  my (undef, $tolerance, @arguments) = @$run;
  my $steps = $small ? 3 : 20;
  my (%found, @rows);
  for my $by (qw(own auto)) {
    local $ENV{TESSERA_CUDA_ATTENTION} = $by;
    my @bits;
    for my $time (1, 2) {
      $found{$by} = [train("attention-$by-$time", $steps, @arguments, 'train.device=cuda')];
      push @bits, join ' ', map { "$_->{loss}:$_->{grad_norm}" } @{ $found{$by} };
    }
    die "attention: two runs by $by differ:\n$bits[0]\n$bits[1]\n" unless $bits[0] eq $bits[1];
    push @rows, { by => $by, tokens_per_second => median(map { $_->{tokens_per_second} } @{ $found{$by} }) };
  }
  my $largest = 0;
  for my $step (0 .. $steps - 1) {
    for my $what (qw(loss grad_norm)) {
      my ($w, $f) = map { $_->[$step]{$what} } @found{qw(own auto)};
      my $difference = abs($f - $w) / (1 + abs $w);
      $largest = $difference if $difference > $largest;
    }
  }
  die "attention: losses or norms by cuDNN are far from our own: $largest (at most $tolerance)\n" unless $largest <= $tolerance;
  return { rows => \@rows, deviation => $largest };
};

# Tokens in a second that others have published for one H100: LLM.Q (github.com/IST-DASLab/llmq, README of 00ea1be).
my %published = ('qwen_1.5b' => 58000, qwen_7b => 14000, qwen_7b_float8 => 18000);

# Microseconds for each token of the operators of a step: at the least and as measured, the largest difference first.
sub gaps {
  my ($roofline) = @_;
  my %operators;
  for my $cost (@{ $roofline->{operators} }) {
    my $sums = $operators{"$cost->{operator}, $cost->{limited_by}"} //= { bound => 0, measured => 0, calls => 0 };
    $sums->{bound} += 1e6 * $cost->{seconds} / $roofline->{tokens};
    $sums->{measured} += 1e6 * $cost->{measured_seconds} / $roofline->{tokens};
    $sums->{calls} += $cost->{calls};
  }
  my @rows = map { { operator => $_, %{ $operators{$_} }, gap => $operators{$_}{measured} - $operators{$_}{bound} } } keys %operators;
  return sort { $b->{gap} <=> $a->{gap} || $a->{operator} cmp $b->{operator} } @rows;
}

# The models whose costs docs/cuda-costs.md derives: measured beside the roofline, by operator, and memory beside the plan.
$steps{models} = sub {
  my @smaller = $small ? ('model.dim=64', 'model.layers=2', 'model.heads=4', 'model.kv_heads=2', 'model.ffn_dim=96', 'model.vocab=512',
    'data.seq_len=16', 'train.batch=4', 'train.micro_batch=2') : ();
  my $tokens = "$folder/logs/tokens.npy";
  run('tokens', $^X, "$root/configs/gpu/tokens.pl", $tokens, $small ? (4096, 512) : ());
  my @rows;
  for my $name (qw(qwen_1.5b qwen_7b qwen_7b_float8 llama_8b llama_8b_float8)) {
    my @arguments = ("$root/configs/gpu/$name.toml", "data.tokens=['$tokens']", @smaller);
    my $step = "$folder/logs/$name.step";
    run("models-$name-capture", $program, 'graph', 'capture', @arguments, @named, 'train.device=cuda', '--to', $step);
    my $bound = decode_json(run("models-$name-roofline", $program, 'graph', 'roofline', $step, '--measure', 'cuda:0', @named, '--json'));
    my @steps = train("models-$name", 6, @arguments, 'train.device=cuda');
    my $peak = $steps[-1]{memory_peaks}{total};
    my $measured = median(map { $_->{tokens_per_second} } @steps[2 .. 5]);
    push @rows, { model => $name, tokens_per_second => $measured, bound_tokens_per_second => $bound->{tokens_per_second},
      share_of_bound => $measured / $bound->{tokens_per_second}, published => $published{$name},
      step_us => 1e6 / $measured, kernels_us => 1e6 * $bound->{measured_seconds} / $bound->{tokens},
      operators => [gaps($bound)], peak_bytes => $peak, planned_bytes => $bound->{peak_bytes},
      loss => $steps[-1]{loss} };
  }
  my $workspace = 1 << 25;  # cuBLASLt's, which the plan is without
  my @other = map { "$_->{model}: $_->{peak_bytes} bytes, $_->{planned_bytes} planned" }
    grep { $_->{peak_bytes} > 1.05 * $_->{planned_bytes} + $workspace || $_->{peak_bytes} < 0.5 * $_->{planned_bytes} } @rows;
  die join "\n", 'models: steps hold more than 1.05 times what was planned, or less than half of it:', @other, '' if @other;
  return { rows => \@rows };
};

# One rank has a communicator of its own. The suite of plugins of collectives checks what it does in registered memory, and
# its abort; then a fully sharded step is queued with it, eager, planned, and between graphs.
$steps{nccl} = sub {
  my $doctor = run('nccl-doctor', $program, 'doctor');
  return { absent => 'the plugin nccl is not installed' } unless $doctor =~ /cuda: (.*) \(by nccl/;
  my $library = $1;
  die "nccl: $library\n" unless $library =~ /^NCCL \d/;
  my ($problem, $text) = try('nccl-plugin', $program, 'plugin', 'check', plugin_file('nccl'));
  die "nccl: $problem\n$text" if $problem;
  my ($passed, $of) = $text =~ /collectives cuda: (\d+) of (\d+) checks passed/ or die "nccl: it does not say how many checks passed\n$text";
  my @missing = grep { $_ !~ /there are no devices for 2 ranks/ } $text =~ /^ *not tried: (.*)/mg;
  die join "\n", 'nccl: what one GPU can show was not tried:', @missing, '' if @missing || !$passed;
  my ($run) = one_rank_runs();
  my @arguments = @$run[3 .. $#$run];
  my @found;
  for my $executor (@all_executors[0 .. 2]) {
    my ($how, @options) = @$executor;
    my @steps = train("nccl-$how", 4, "$root/configs/fully_sharded.toml", @arguments, 'mesh.shape=[1]', 'train.device=cuda', @options);
    my @wanted = train("nccl-none-$how", 4, $run->[2], @arguments, 'train.device=cuda', @options);
    for my $step (0 .. $#steps) {
      for my $what (qw(loss grad_norm)) {
        die "nccl: step $step, $how, has the $what $steps[$step]{$what} with one rank of a mesh, and $wanted[$step]{$what} without\n"
          unless $steps[$step]{$what} == $wanted[$step]{$what};
      }
    }
    push @found, $how;
  }
  return { library => $library, passed => $passed + 0, of => $of + 0, steps => \@found };
};

sub result_of {
  my ($step) = @_;
  return -e "$folder/$step.json" ? decode_json(text_of("$folder/$step.json")) : undef;
}

sub number { return sprintf '%.3g', $_[0] }

sub table {
  my ($heads, @rows) = @_;
  return join '', map { '| ' . join(' | ', @$_) . " |\n" } $heads, [('---') x @$heads], @rows;
}

# Of a model: where its step is longer than the bound, in microseconds for each token.
sub gaps_as_text {
  my ($model) = @_;
  my @rows = @{ $model->{operators} };
  my @most = splice @rows, 0, 10;
  my %others = (operator => scalar(@rows) . ' others', map { my $what = $_; ($what => sum(map { $_->{$what} } @rows)) } qw(calls bound measured gap));
  return "\n### $model->{model}, us for each token\n\nA step takes " . number($model->{step_us}) . ', its kernels, one after the other, '
    . number($model->{kernels_us}) . ".\n\n"
    . table(['operator, limited by', 'calls', 'bound', 'measured', 'gap'],
      map { [$_->{operator}, $_->{calls}, map { number($_) } @$_{qw(bound measured gap)}] } @most, @rows ? \%others : ());
}

# The lines of the page about a step that has passed.
my %page = (
  doctor => sub {
    "Device: $_[0]{device}\n\n```text\n$_[0]{text}```\n\n"
      . ($_[0]{cudnn} ? "cuDNN's description of the device, to be copied into tests/cuda/devices: $_[0]{cudnn}\n" : "cuDNN 9.16 or later was not found.\n");
  },
  plugin => sub {
    my %shares = %{ $_[0]{deviations} // {} };
    return "$_[0]{passed} of $_[0]{of} checks passed. The other operators have the CPU's bits.\n\n"
      . table(['operator', 'share of the tolerance'], map { [$_, number($shares{$_})] } sort { $shares{$b} <=> $shares{$a} || $a cmp $b } keys %shares);
  },
  operators => sub {
    my @slow = @{ $_[0]{below_80_percent} };
    return (@slow ? 'Below 80% of what a copy moves in a second: ' . join(', ', @slow) . ".\n\n" : '')
      . table(['operator', 'us', 'GB/s', 'of a copy', 'TFLOP/s', 'best of 8', 'from the CPU'],
        map { my $r = $_; [$r->{name}, map { defined $r->{$_} ? number($r->{$_}) : '' } qw(us gb_per_second share_of_clone tflops tflops_measured deviation)] }
          @{ $_[0]{rows} });
  },
  sanitizer => sub { join '', map { "$_: $_[0]{$_}\n" } grep { exists $_[0]{$_} } qw(memcheck racecheck) },
  bits => sub { 'Two runs have the same bits: ' . join('; ', @{ $_[0]{equal} }) . ".\n" },
  configs => sub {
    table(['config', 'executor', 'steps', 'from the CPU', 'at most', 'tokens/s'],
      map { [@$_{qw(config executor steps)}, number($_->{deviation}), $_->{tolerance}, number($_->{tokens_per_second})] } @{ $_[0]{rows} });
  },
  attention => sub {
    'The largest difference is ' . number($_[0]{deviation}) . ".\n\n"
      . table(['attention by', 'tokens/s'], map { [$_->{by}, number($_->{tokens_per_second})] } @{ $_[0]{rows} });
  },
  models => sub {
    my @rows = @{ $_[0]{rows} };
    return table(['model', 'tokens/s', 'bound', 'share', 'published', 'peak GiB', 'planned GiB'],
        map { [$_->{model}, map({ number($_) } @$_{qw(tokens_per_second bound_tokens_per_second share_of_bound)}), $_->{published} // '',
          map({ number($_ / 2**30) } @$_{qw(peak_bytes planned_bytes)})] } @rows)
      . "\nPublished: LLM.Q on one H100 (github.com/IST-DASLab/llmq, README of 00ea1be).\n"
      . join '', map { gaps_as_text($_) } @rows;
  },
  nccl => sub {
    "$_[0]{library}: $_[0]{passed} of $_[0]{of} checks passed (the others need two GPUs). A fully sharded step of one rank has the "
      . 'bits of one without a mesh: ' . join(', ', @{ $_[0]{steps} }) . ".\n";
  },
);

sub write_page {
  my $text = "# Tessera on a GPU\n\nWritten by `./dev gpu` ($size sizes).\n";
  for my $step (@order) {
    my $result = result_of($step) // next;
    $text .= "\n## $step: $result->{status}" . sprintf(" (%.0f s)\n\n", $result->{seconds});
    $text .= $result->{status} eq 'passed' ? $page{$step}->($result) : "```text\n$result->{problem}\n```\n";
  }
  write_file("$folder/gpu.md", $text);
}

my %known = map { $_ => 1 } @order;
for (@only, grep { $_ ne 'all' } @again) {
  die "gpu: there is no step '$_' (the steps are @order)\n" unless $known{$_};
}
my ($none) = try('device', $program, 'bench', 'device', @named, '--device', 'cuda:0', '--elements', 1 << 14, '--only', 'nothing', '--json');
if ($none) {
  print "gpu: no GPU can be used: $none\n";
  exit 1;
}
my %repeat = map { $_ => 1 } grep { $_ ne 'all' } @again;
my @todo = @only ? @only : @order;
my $failed = 0;
for my $step (@todo) {
  my $before = result_of($step);
  if ($before && $before->{status} eq 'passed' && $before->{size} eq $size && !$repeat{$step} && !grep { $_ eq 'all' } @again) {
    print "$step: passed before\n";
    next;
  }
  my $start = time;
  my $result = eval { $steps{$step}->() };
  my $problem = $@;
  $result = $result ? $result->{absent} ? { status => 'absent', problem => $result->{absent} } : { %$result, status => 'passed' }
    : { status => 'failed', problem => $problem =~ s/\n+\z//r };
  @$result{qw(step size seconds)} = ($step, $size, time - $start);
  write_file("$folder/$step.json", $json->encode($result));
  write_page();
  ++$failed if $result->{status} eq 'failed';
  printf "%s: %s (%.0f s)%s\n", $step, $result->{status}, $result->{seconds}, $result->{problem} ? "\n  " . $result->{problem} =~ s/\n/\n  /gr : '';
}
print "page: $folder/gpu.md\n";
exit($failed ? 1 : 0);
