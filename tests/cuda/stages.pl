#!/usr/bin/env perl
# Stages and context parallel on emulated GPUs, whose messages go by NCCL or through the host: the steps have the same
# bits, on one machine and on two, and where gathers within a machine go through symmetric windows. A rank that dies in a
# message, or while a window is registered, ends all of them, with its name.
#   stages.pl PROGRAM EMULATOR KERNELS PLUGIN...
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use IO::Socket::INET;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use EmulatedRun qw(use_emulator text_to_train_on small_llama training run steps_in compare_steps);
use Files qw(text_of write_file);

my ($program, $emulator, $kernels, @plugins) = @ARGV;
die "usage: stages.pl PROGRAM EMULATOR KERNELS PLUGIN...\n" unless @plugins;
my $folder = tempdir(CLEANUP => 1);
use_emulator($emulator, $kernels, 4);
text_to_train_on("$folder/text");

my $fsdp = qq([[parallel]]\nstyle = "FSDP"\naxis = "shard"\non = ["model.layers.*", "."]\n);
sub pipeline {
  my ($schedule, $axes, $shape) = @_;
  return qq([mesh]\naxes = [$axes]\nshape = [$shape]\n[[parallel]]\nstyle = "Pipeline"\naxis = "pipe"\non = ["."]\n)
    . qq(options = { schedule = "$schedule" }\n);
}
my %layouts = (
  chain => pipeline('1f1b', '"pipe"', 4),
  turned => pipeline('zero_bubble_v', '"pipe"', 2),
  sharded => pipeline('interleaved', '"pipe", "shard"', '2, 2') . $fsdp,
  context => qq([mesh]\naxes = ["context"]\nshape = [4]\n[[parallel]]\nstyle = "ContextParallel"\naxis = "context"\non = ["**.inner_attention"]\n),
);

sub command {
  my ($name, @options) = @_;
  return ($program, 'train', "$folder/$name.toml", (map { ('--plugin', $_) } @plugins), 'train.device=cuda',
    'model.layers=4', 'train.batch=4', 'train.micro_batch=1', 'log.sample=0', "checkpoint.folder=''", @options);
}

# Of each step: loss, norm.
sub steps_of {
  my ($name, @options) = @_;
  unlink "$folder/metrics";
  my @command = command($name, "log.metrics=$folder/metrics", @options);
  my ($status, $text) = run("$folder/log", @command);
  die "'@command' fails:\n$text" if $status != 0;
  return steps_in("$folder/metrics", 3);
}
sub bits { return join ' ', map { @$_ } @_ }

# The same on two machines that this one plays; the text of each and how it ends.
sub on_two_machines {
  my ($name, $variables, @options) = @_;
  my $free = IO::Socket::INET->new(Listen => 1, LocalAddr => '127.0.0.1') or die "no port: $!\n";
  my $port = $free->sockport;
  close $free;
  my @children;
  for my $machine (0, 1) {
    my $pid = fork // die "fork: $!\n";
    if ($pid == 0) {
      %ENV = (%ENV, TESSERA_EMULATOR_MACHINE => $machine, %$variables);
      open STDIN, '<', '/dev/null';
      open STDOUT, '>', "$folder/log-$machine";
      open STDERR, '>&', \*STDOUT;
      my @command = command($name, '--machines', 2, '--machine', $machine, '--meet', "localhost:$port", @options);
      exec @command or die "$command[0]: $!\n";
    }
    push @children, $pid;
  }
  my @ends = map { waitpid $_, 0; $? } @children;
  return (\@ends, map { text_of("$folder/log-$_") } 0, 1);
}

for my $name (sort keys %layouts) {
  write_file("$folder/$name.toml", small_llama("$folder/text") . training('f32', $layouts{$name}));
  my @wanted = steps_of($name, 'mesh.device_collectives=host');
  for my $how ([], ['graph.capture=true', 'graph.executor=planned']) {
    my $found = bits(steps_of($name, @$how));
    die "$name @$how: $found over NCCL, through the host " . bits(@wanted) . "\n" unless $found eq bits(@wanted);
  }
  for my $window ($name eq 'sharded' ? (0, 1) : $name eq 'context' ? 0 : ()) {
    unlink "$folder/metrics";
    my ($ends, @texts) = on_two_machines($name, { TESSERA_NCCL_WINDOW => $window }, "log.metrics=$folder/metrics");
    die "$name on two machines ends with @$ends:\n$texts[0]\n$texts[1]" if grep { $_ != 0 } @$ends;
    my $found = bits(steps_in("$folder/metrics", 3));
    die "$name on two machines, windows of $window MiB: $found, on one " . bits(@wanted) . "\n" unless $found eq bits(@wanted);
  }
  print "$name: ", bits(@wanted), "\n";
}

# Of the two members of a communicator of messages, 1 dies.
for my $place ('ncclSend 4', 'ncclRecv 4', 'ncclGroupEnd 9') {
  local $ENV{TESSERA_EMULATOR_KILL} = "1 $place";
  my $start = time;
  my ($status, $text) = run("$folder/log", command('chain'));
  my $took = time - $start;
  die "a rank that dies at $place: status $status after $took s (expected 256 within 30):\n$text"
    unless $status == 256 && $took < 30 && $text =~ /^error: rank [1-3]\b/m;
}
for my $place ('ncclRecv 6', 'ncclCommWindowRegister 1', 'ncclMemAlloc 1') {
  my ($ends, @texts) = on_two_machines('sharded', { TESSERA_NCCL_WINDOW => 1, TESSERA_EMULATOR_KILL => "1 $place" });
  for my $machine (0, 1) {
    die "a rank that dies at $place on two machines: machine $machine ends with $ends->[$machine]:\n$texts[$machine]"
      unless $ends->[$machine] == 256 && $texts[$machine] =~ /^error: rank [0-3]\b/m;
  }
}
print "a rank that dies is named\n";
