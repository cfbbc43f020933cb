#!/usr/bin/env perl
# Shows where the repository is large: the largest functions, classes, files and folders. A change that enlarges one of
# the first ten says why in its message: whether a design is good is a reader's judgement. Fails for what no reader can
# hold in mind: a class whose methods are defined in more than two bodies, a function of more than 80 lines. Needs
# only perl's core modules, and sources that clang-format has formatted.
#
#   perl cmake/sizes.pl [ROOT]
use strict;
use warnings;
use File::Basename qw(dirname);
use File::Find;
use lib dirname(__FILE__);
use Functions qw(functions_in);

my $root = $ARGV[0] // dirname(__FILE__) . '/..';
chdir $root or die "sizes: no folder $root\n";
my ($most_bodies, $most_lines) = (2, 80);

my (@functions, @classes, %lines, %folders, %bodies, @findings);
for my $area (grep { -d } qw(modules plugins apps tests)) {
  find({ no_chdir => 1, wanted => sub {
    return unless -f && /\.(cpp|cppm|hpp|h|cu|cuh)$/;
    open my $in, '<', $_ or die "sizes: cannot read $_: $!\n";
    my @text = <$in>;
    ($lines{$_}, $folders{ dirname($_) }) = (scalar @text, ($folders{ dirname($_) } // 0) + 1);
    read_file($_, \@text) unless m{^tests/};
  } }, $area);
}

# A class is everything between "class NAME ... {" and "};" in the first column, and its methods are the lines with "("
# below "public:".
sub read_file {
  my ($file, $text) = @_;
  my ($class, $public, $methods);
  my ($folder) = $file =~ m{^(\w+/[^/]+)};
  for my $line (@$text) {
    if ($line =~ /^(?:class|struct) (?:\w+\(\w*\) )?(\w+)\b[^;]*\{\s*$/) {
      ($class, $public, $methods) = ($1, scalar($line =~ /^struct/), 0);
    } elsif ($class) {
      $public = $1 eq 'public' if $line =~ /^ (public|private|protected):/;
      ++$methods if $public && $line =~ /^  [^\s\/}#].*\(/ && $line !~ /^  (?:friend|using|static_assert|return)\b/;
      if ($line =~ /^\};/) {
        push @classes, [$methods, $class, $file];
        undef $class;
      }
    }
  }
  my $whole = join '', @$text;
  for (functions_in($whole)) {
    my ($name, $from, $to, $declared) = @$_;
    next unless defined $declared;
    my $first = 1 + (substr($whole, 0, $from) =~ tr/\n//);
    push @functions, [1 + (substr($whole, $from, $to - $from) =~ tr/\n//), $name, "$file:$first"];
    my ($owner) = $declared =~ /^(.*::)/;
    $bodies{"$folder $owner"}{$file} = 1 if $owner && $file =~ /\.cpp$/;
  }
}

for (sort { $a->[2] cmp $b->[2] } grep { $_->[0] > $most_lines } @functions) {
  push @findings, "$_->[2]: $_->[1] has $_->[0] lines; at most $most_lines: divide it";
}
for my $class (sort keys %bodies) {
  my @files = sort keys %{ $bodies{$class} };
  my ($folder, $name) = split ' ', $class;
  push @findings, "$files[0]: the methods of " . ($name =~ s/::$//r) . " are in " . scalar(@files) . " bodies (@files); at most $most_bodies: divide the class"
    if @files > $most_bodies;
}

sub largest {
  my ($what, @rows) = @_;
  @rows = sort { $b->[0] <=> $a->[0] || $a->[1] cmp $b->[1] } @rows;
  splice @rows, 10 if @rows > 10;
  print "largest $what:\n", map { sprintf "  %5d  %s\n", $_->[0], join '  ', @$_[1 .. $#$_] } @rows;
}
largest('functions (lines)', @functions);
largest('classes (public methods)', @classes);
largest('files (lines)', map { [$lines{$_}, $_] } keys %lines);
largest('folders (sources)', map { [$folders{$_}, $_] } keys %folders);
if (@findings) {
  print "to be divided:\n", map { "  $_\n" } @findings;
  exit 1;
}
