//go:build race || invariants

package invariant_test

import (
	"testing"

	"github.com/lightio/lightq/internal/invariant"
)

func TestEnabledUnderRaceAndTag(t *testing.T) {
	if !invariant.Enabled {
		t.Fatal("Enabled is false in a build with -race or -tags=invariants")
	}
}
