package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Ask writes a question to w and reports whether the line that comes from r says yes. No line is no.
func Ask(w io.Writer, r io.Reader, question string) (bool, error) {
	fmt.Fprintf(w, "%s [y/N] ", question)
	line, err := bufio.NewReader(io.LimitReader(r, 1024)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true, nil
	}
	return false, nil
}

// AskSecret writes a question to w and returns the line that is typed on the terminal f, which does not show it.
func AskSecret(w io.Writer, f *os.File, question string) (string, error) {
	before, err := unix.IoctlGetTermios(int(f.Fd()), getTermios)
	if err != nil {
		return "", &Error{
			Exit: ExitUsage, Text: "a password is asked for on a terminal, and standard input is none",
			Fix: "give it in a file or in the environment", Err: err,
		}
	}
	// A signal that ends the program must not leave the terminal mute.
	ctx, stop := Interruptible(context.Background())
	defer stop()
	mute := *before
	mute.Lflag &^= unix.ECHO
	mute.Lflag |= unix.ECHONL | unix.ICANON | unix.ISIG
	if err := unix.IoctlSetTermios(int(f.Fd()), setTermios, &mute); err != nil {
		return "", Failf(ExitFailure, "ask for a password: %v", err)
	}
	defer func() { _ = unix.IoctlSetTermios(int(f.Fd()), setTermios, before) }() // nothing better to do if it fails
	fmt.Fprint(w, question)
	type answer struct {
		line string
		err  error
	}
	typed := make(chan answer, 1)
	go func() { // ends with the line, or with the process
		line, err := bufio.NewReader(io.LimitReader(f, maxSecretBytes)).ReadString('\n')
		typed <- answer{line, err}
	}()
	select {
	case <-ctx.Done():
		return "", ErrInterrupted
	case a := <-typed:
		if a.err != nil && !errors.Is(a.err, io.EOF) {
			return "", Failf(ExitFailure, "read the password: %v", a.err)
		}
		if a.line = strings.TrimRight(a.line, "\r\n"); a.line == "" {
			return "", Usagef("no password was given")
		}
		return a.line, nil
	}
}

// maxSecretBytes is far more than a password has.
const maxSecretBytes = 4096

// ReadSecret returns the password in a file: all of it but a newline at its end. flag is for errors.
func ReadSecret(flag, path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", Usagef("%s: %v", flag, err)
	}
	defer func() { _ = file.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(file, maxSecretBytes+1))
	switch secret := strings.TrimRight(string(b), "\r\n"); {
	case err != nil:
		return "", Usagef("%s: %v", flag, err)
	case secret == "":
		return "", Usagef("%s: %s holds no password", flag, path)
	case len(b) > maxSecretBytes:
		return "", Usagef("%s: %s has more than %d bytes, which is no password", flag, path, maxSecretBytes)
	default:
		return secret, nil
	}
}
