package pgtest

import (
	"context"
	"errors"
)

func openDocker(context.Context, Options) (engine, error) { return nil, errors.ErrUnsupported }

func dockerAnswers(context.Context) bool { return false }
